"""BLEU by length of the reference: a table and a chart for each test set and kind of data."""

from collections.abc import Sequence

from oaxe.support.tables import TextTable, mean_and_spread
from reproduction.charts import Line, line_chart
from reproduction.report import Report
from reproduction.results import EvalSet, Results, shown_sets
from reproduction.tables import Row, Table


def lengths(name: str, table: Table, all_results: Sequence[Results]) -> Report:
    report = Report()
    for results in all_results:
        for shown in shown_sets(table, results):
            for heading, rows in sections(table).items():
                add_lengths(report, f"{shown.label}: {heading.lower()}", shown, rows)
    return report


def sections(table: Table) -> dict[str, list[Row]]:
    """The rows below each heading."""
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.experiments:
            found[next(reversed(found))].append(row)
        else:
            found[row.label] = []
    return found


def add_lengths(report: Report, title: str, shown: EvalSet, rows: Sequence[Row]) -> None:
    results, lines, table_rows = shown.results, [], []
    labels, unit = list[str](), ""
    for row in rows:
        tests = {seed: r["tests"].get(shown.name) for seed, r in results.of(row.key).items()}
        by_seed = {seed: scores["bleu_by_length"] for seed, scores in tests.items() if scores}
        lines.append(Line(row.label, []))
        if not by_seed:
            continue
        unit = next(scores["unit"] for scores in tests.values() if scores)
        buckets = list(zip(*by_seed.values(), strict=True))  # of all seeds
        labels = [f"{first['label']} ({first['sentences']:,})" for first, *_ in buckets]
        values = [[one["bleu"] for one in same if one["bleu"] is not None] for same in buckets]
        table_rows.append([row.label, *map(mean_and_spread, values)])
        lines[-1] = Line(row.label, [(i, found) for i, found in enumerate(values) if found])
        report.csv_rows += [
            {"by": "us", "dataset": results.folder.dataset, "text": shown.name, "row": title,
             "column": bucket["label"], "value": bucket["bleu"], "system": row.key, "seed": seed,
             **results.origin(row.key, seed, shown.name)}
            for seed, of_seed in by_seed.items() for bucket in of_seed
        ]  # fmt: skip
    if not table_rows:
        return
    axis = f"{unit} of the reference (sentences)"
    report.tables.append(TextTable(f"BLEU by {axis}, {title}", ["system", *labels], table_rows))
    figure, axes = line_chart(lines, axis, spread=False)
    axes.set_ylim(bottom=0)
    ticks = {i: label for i, label in enumerate(labels) if not label.endswith("(0)")}
    axes.set_xticks([*ticks], [label.replace(" (", "\n(") for label in ticks.values()])
    report.charts.append((title, figure))
