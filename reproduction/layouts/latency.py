"""Quality against latency, with trained models on a test set: a table and a picture."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from oaxe.support.tables import NOTHING, TextTable, mean_and_spread
from reproduction.charts import Line, line_chart
from reproduction.folder import read_json
from reproduction.layouts.speed import device_name
from reproduction.report import Report
from reproduction.results import Results
from reproduction.tables import Row, Table

# Systems that a line connects, by the beginning of the names of experiments.
FAMILIES = {
    "teacher": "Transformer",
    "at-12-1": "Transformer 12-1",
    "oaxe": "CMLM + OaXE",
    "ctc": "CTC + GLAT",
    "dag": "DAG",
}
HEAD = [
    "system", "decoding", "BLEU", "chrF", "ms a sentence", "95 % within", "x teacher's",
    "sentences a second",
]  # fmt: skip


def latency(name: str, table: Table, all_results: Sequence[Results]) -> Report:
    report = Report(notes=[
        "Text to text. Latency: one sentence at a time, 100 sentences spread evenly over the test "
        "set, median. Sentences a second: the whole test set. One seed, the systems take turns, "
        "updates and steps are recorded as CUDA graphs where the device has them.",
    ])  # fmt: skip
    for results in all_results:
        timings = sorted(results.folder.results.glob("latency-*.json"))
        for path in timings:
            timed = read_json(path)
            device = device_name(timed["environment"])
            title = f"{results.folder.dataset}, {device}"
            shown = [row for row in table.rows if row.key in timed["systems"]]
            lines = [table_line(row, timed["systems"], results) for row in shown]
            report.tables.append(TextTable(title, HEAD, lines))
            drawn = [*families(shown, timed["systems"], results)]
            figure, axes = line_chart(drawn, "ms a sentence", spread=False)
            axes.set_xscale("log")
            report.charts.append((title, figure))
            report.csv_rows += [
                {"by": "us", "dataset": results.folder.dataset, "text": "test", "row": row.label,
                 "column": column, "value": value, "system": row.key, "seed": 1, "device": device,
                 "commit": timed["environment"]["commit"],
                 "result": path.relative_to(results.folder.out).as_posix()}
                for row in shown for column, value in measured(timed["systems"][row.key]).items()
            ]  # fmt: skip
        if not timings:
            report.notes.append(f"{results.folder.dataset}: decoding was not timed")
    return report


def measured(timed: Mapping[str, Any]) -> dict[str, float]:
    found = timed["latency_ms"]
    return {
        "ms a sentence": found["median"],
        "95 % within": found["p95"],
        "sentences a second": timed["sentences_per_second"],
    }


def table_line(row: Row, timed: Mapping[str, Any], results: Results) -> list[str]:
    own = measured(timed[row.key])
    teacher = measured(timed["teacher"])["ms a sentence"] if "teacher" in timed else None
    models = [r["tests"]["test"]["model"] for r in results.of(row.key).values()]
    values = [list(results.values(row.key, m, "test").values()) for m in ("bleu", "chrf")]
    return [
        row.label,
        models[0]["decoding_in_words"] if models else NOTHING,
        *(mean_and_spread(value, ".1f") for value in values),
        f"{own['ms a sentence']:.1f}",
        f"{own['95 % within']:.1f}",
        f"{own['ms a sentence'] / teacher:.2f}" if teacher else NOTHING,
        f"{own['sentences a second']:,.0f}",
    ]


def families(shown: Sequence[Row], timed: Mapping[str, Any], results: Results) -> Iterator[Line]:
    """Latency and BLEU, decoders of a family in the order of their latency."""
    for beginning, label in FAMILIES.items():
        points = [
            (measured(timed[row.key])["ms a sentence"], [mean(values)])
            for row in shown
            if row.key.startswith(beginning)
            and (values := list(results.values(row.key, "bleu", "test").values()))
        ]
        yield Line(label, sorted(points))
