"""How fast systems train and decode."""

from collections.abc import Mapping, Sequence
from typing import Any

from oaxe.evaluation.tables import speed
from oaxe.support.tables import NOTHING
from oaxe.support.tables import TextTable as Figures
from reproduction.translation.paper import TIMES_XE
from reproduction.translation.place import read_json
from reproduction.translation.records import Records
from reproduction.translation.sheet import Sheet, origin
from reproduction.translation.tables import Table


def speeds(name: str, table: Table, all_records: Sequence[Records]) -> Sheet:
    sheet = Sheet(notes=[
        "Training: target tokens a second while updating, validation and saving not counted; "
        "time against XE is that of an equal number of tokens in the same stage, with the same "
        "seed. Where several processes may have shared a device, it says so: their seconds cannot "
        "be compared.",
    ])  # fmt: skip
    for records in all_records:
        dataset = records.place.dataset
        sheet.tables.append(training_speed(dataset, table, records))
        sheet.figures += [
            {"by": "us", "dataset": dataset, "row": row.label, "column": "target tokens a second",
             "value": result["training"]["tokens_per_second"], "system": row.systems[0],
             "seed": seed, **origin(records, row.systems[0], seed, "test")}
            for row in table.rows for seed, result in records.of(row.systems[0]).items()
        ]  # fmt: skip
        for path in (timings := sorted(records.place.results.glob("speed-*.json"))):
            timed = read_json(path)
            report = {"systems": {n: {"speed": s} for n, s in timed["systems"].items()}}
            title, head, rows = speed(report)
            device = device_of(timed["environment"])
            sheet.tables.append(Figures(f"{dataset}: decoding. {title}, {device}", head, rows))
            sheet.figures += [
                {"by": "us", "dataset": dataset, "text": "test", "row": row, "column": column,
                 "value": value, "device": device, "commit": timed["environment"]["commit"],
                 "result": f"{dataset}/{records.place.preset}/results/{path.name}"}
                for row, *values in rows for column, value in zip(head[1:], values, strict=True)
            ]  # fmt: skip
        if not timings:
            sheet.notes.append(f"{dataset}: decoding was not timed")
    return sheet


def device_of(environment: Mapping[str, Any]) -> str:
    processor = f"{environment['processor']}, {environment['threads']} threads"
    return processor if environment["device"] == "cpu" else str(environment["device"])


def training_speed(dataset: str, table: Table, records: Records) -> Figures:
    of_xe = {seed: r["training"]["tokens_per_second"] for seed, r in records.of("xe").items()}
    lines = []
    for row in table.rows:
        for seed, result in records.of(row.systems[0]).items():
            training, xe = result["training"], of_xe.get(seed)
            own, shared = training["tokens_per_second"], training["processes_on_device"]
            is_tuned = result["settings"]["train"]["init_from"] is not None
            lines.append([
                f"{row.label}{f', seed {seed}' * (seed > 1)}",
                f"{training['step']:,}",
                f"{training['seconds']:,.0f}",
                f"{own:,.0f}" if own else NOTHING,
                f"{xe / own:.2f}" if own and xe and is_tuned else NOTHING,
                f"{TIMES_XE}" if row.systems[0] == "oaxe" else "",
                result["environment"]["device"] + f", up to {shared} processes" * (shared > 1),
            ])  # fmt: skip
    head = ["system", "updates", "seconds of updates", "target tokens a second"]
    return Figures(
        f"{dataset}: training", [*head, "time against XE", "paper", "device"], lines
    )  # fmt: skip
