"""The speed of training and decoding."""

from collections.abc import Mapping, Sequence
from typing import Any

from oaxe.evaluation.tables import speed as speed_table
from oaxe.support.tables import NOTHING, TextTable
from reproduction.folder import read_json
from reproduction.paper import TIMES_XE
from reproduction.report import Report
from reproduction.results import Results
from reproduction.tables import Table


def speed(name: str, table: Table, all_results: Sequence[Results]) -> Report:
    report = Report(notes=[
        "Training: target tokens a second while updating, validation and saving not counted; "
        "time against XE is that of an equal number of tokens in the same stage, with the same "
        "seed. The column device tells where several processes may have shared one: their seconds "
        "cannot be compared.",
    ])  # fmt: skip
    for results in all_results:
        add_speed(report, table, results)
    return report


def add_speed(report: Report, table: Table, results: Results) -> None:
    dataset = results.folder.dataset
    report.tables.append(training_speed(dataset, table, results))
    report.csv_rows += [
        {"by": "us", "dataset": dataset, "row": row.label, "column": "target tokens a second",
         "value": result["training"]["tokens_per_second"], "system": row.key, "seed": seed,
         **results.origin(row.key, seed, "test")}
        for row in table.rows for seed, result in results.of(row.key).items()
    ]  # fmt: skip
    timings = sorted(results.folder.results.glob("speed-*.json"))
    for path in timings:
        timed = read_json(path)
        shown = {"systems": {n: {"speed": s} for n, s in timed["systems"].items()}}
        title, head, rows = speed_table(shown)
        device = device_name(timed["environment"])
        report.tables.append(TextTable(f"{dataset}: decoding. {title}, {device}", head, rows))
        report.csv_rows += [
            {"by": "us", "dataset": dataset, "text": "test", "row": row, "column": column,
             "value": value, "device": device, "commit": timed["environment"]["commit"],
             "result": path.relative_to(results.folder.out).as_posix()}
            for row, *values in rows for column, value in zip(head[1:], values, strict=True)
        ]  # fmt: skip
    if not timings:
        report.notes.append(f"{dataset}: decoding was not timed")


def device_name(environment: Mapping[str, Any]) -> str:
    processor = f"{environment['processor']}, {environment['threads']} threads"
    return processor if environment["device"] == "cpu" else str(environment["device"])


def training_speed(dataset: str, table: Table, results: Results) -> TextTable:
    of_xe = {seed: r["training"]["tokens_per_second"] for seed, r in results.of("xe").items()}
    lines = []
    for row in table.rows:
        for seed, result in results.of(row.key).items():
            training, xe = result["training"], of_xe.get(seed)
            own, shared = training["tokens_per_second"], training["processes_on_device"]
            is_tuned = result["settings"]["train"]["init_from"] is not None
            lines.append([
                f"{row.label}{f', seed {seed}' * (seed > 1)}",
                f"{training['step']:,}",
                f"{training['seconds']:,.0f}",
                f"{own:,.0f}" if own else NOTHING,
                f"{xe / own:.2f}" if own and xe and is_tuned else NOTHING,
                f"{TIMES_XE}" if row.key == "oaxe" else "",
                result["environment"]["device"] + f", up to {shared} processes" * (shared > 1),
            ])  # fmt: skip
    head = ["system", "updates", "seconds of updates", "target tokens a second"]
    return TextTable(
        f"{dataset}: training", [*head, "time against XE", "paper", "device"], lines
    )  # fmt: skip
