"""Quality against latency: the scores of trained models, and a picture of both."""

from collections.abc import Iterator, Sequence

from reproduction.charts import Line, line_chart
from reproduction.layouts.scores import scores
from reproduction.report import Report
from reproduction.results import Results
from reproduction.tables import Table

# Decoders that a line connects, by the beginning of the names of experiments.
FAMILIES = {
    "teacher": "Transformer",
    "student": "Transformer of the students' size",
    "at-12-1": "Transformer 12-1",
    "oaxe": "CMLM + OaXE",
    "ctc": "CTC + GLAT",
    "dag": "DAG",
}


def latency(name: str, table: Table, all_results: Sequence[Results]) -> Report:
    report = scores(name, table, all_results)
    report.notes.append(
        "Text to text, seed 1, the systems take turns; on a GPU recorded as CUDA graphs. One "
        "sentence: the median of 100 that are spread evenly over the test set. Sentences a second: "
        "the whole test set."
    )
    for results in all_results:
        lines = list(families(table, results))
        if any(line.points for line in lines):
            figure, axes = line_chart(lines, "one sentence, ms", spread=False)
            axes.set_xscale("log")
            report.charts.append((results.folder.dataset, figure))
    return report


def families(table: Table, results: Results) -> Iterator[Line]:
    """Latency and BLEU, the decoders of a family in the order of their latency."""
    for beginning, label in FAMILIES.items():
        names = [row.key for row in table.rows if row.key.startswith(beginning)]
        both = [
            [results.values(name, measure, "test").get(1) for measure in ("latency", "bleu")]
            for name in names
        ]
        yield Line(label, sorted((ms, [bleu]) for ms, bleu in both if ms and bleu))
