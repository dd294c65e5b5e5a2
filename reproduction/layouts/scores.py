"""Most of the paper's tables: a row an experiment, a column a measure; the paper's beside ours."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import mean
from typing import Any, NamedTuple

from oaxe.support.tables import NOTHING, TextTable, mean_and_spread
from reproduction.charts import Line, line_chart
from reproduction.paper import PAPER, Reported
from reproduction.report import Report
from reproduction.results import EvalSet, Results, shown_sets
from reproduction.tables import BEST_ROW, Column, Row, Table

# Others have one digit.
FORMATS = dict.fromkeys(("repetition", "repetition_of_subwords", "ncm", "brevity"), ".2f")
FORMATS |= dict.fromkeys(("tokens", "seconds", "throughput", "lines"), ",.0f")


class FilledColumn(NamedTuple):
    head: str
    cells: list[str]  # one a row
    csv_rows: list[dict[str, Any]]


def scores(name: str, table: Table, all_results: Sequence[Results]) -> Report:
    """Columns for each test set, and those of the paper."""
    reported = PAPER.get(name, Reported((), {}))
    sets = [one for results in all_results for one in shown_sets(table, results)]
    ours = [results.folder.dataset for results in all_results]
    filled: list[FilledColumn] = []
    for dataset in dict.fromkeys((*ours, *reported.datasets)):  # the same beside each other
        here = [one for one in sets if one.results.folder.dataset == dataset]
        filled += [our_column(table, one, column) for one in here for column in table.columns]
        wanted = [column for column in table.columns if dataset in ours or not column.is_minor]
        filled += [their_column(table, reported, dataset, column) for column in wanted]
    filled = [column for column in filled if any(column.cells)]
    head = ["system", *(column.head for column in filled)]
    lines = [
        [row.label, *(column.cells[i] for column in filled)] for i, row in enumerate(table.rows)
    ]
    report = Report(tables=[TextTable(f"{table.about} {table.paper}", head, lines)])
    report.csv_rows += chain.from_iterable(column.csv_rows for column in filled)
    if table.test_sets == "several" and not sets:
        report.notes.append(
            "None of these data sets has a test set with several references: English-German has "
            "ott2018-en-de, Tatoeba its own."
        )
    report.notes += [reported.note] if reported.note else []
    if table.axis:
        lines_drawn = [*our_lines(table, sets), *their_lines(table, reported)]
        report.charts.append((table.about, line_chart(lines_drawn, table.axis)[0]))
    return report


def our_column(table: Table, shown: EvalSet, column: Column) -> FilledColumn:
    cells = [our_cell(table, shown, row, column) for row in table.rows]
    csv_rows = [line for row in table.rows for line in our_csv_rows(shown, row, column)]
    return FilledColumn(f"{shown.label}: {column.label}", cells, csv_rows)


def their_column(table: Table, reported: Reported, dataset: str, column: Column) -> FilledColumn:
    found = reported_values(reported, dataset, column)
    cells = [their_cell(found.get(row.key), column) for row in table.rows]
    same = {"by": "paper", "dataset": dataset, "column": column.label}
    csv_rows = [
        {**same, "row": row.label, "value": value}
        for row in table.rows
        if (value := found.get(row.key)) is not None
    ]
    return FilledColumn(f"paper, {dataset}: {column.label}", cells, csv_rows)


def reported_values(reported: Reported, dataset: str, column: Column) -> dict[str, float | None]:
    """The paper's values of a column, by row."""
    if dataset not in reported.datasets:
        return {}
    index = reported.datasets.index(dataset)
    rows = reported.columns.get(column.label, {})
    return {key: values[index] for key, values in rows.items()}


def our_cell(table: Table, shown: EvalSet, row: Row, column: Column) -> str:
    results, name = shown.results, shown.results.experiment(row, column)
    if name is None:
        return NOTHING if row.experiments else ""
    if column.kind == "p":
        baseline = opponent(table, shown, row, column)
        compared = baseline and baseline != name
        p = results.p_value(name, baseline, shown.name) if compared else None
        return NOTHING if p is None else f"{p:.4f}"
    by_seed = results.values(name, column.measure, shown.name)
    values = list(by_seed.values())
    if column.kind == "gain":
        gained = gains(by_seed, results.values(row.baseline, column.measure, shown.name))
        return f"{mean(gained.values()):+z.1f}" if gained else NOTHING
    if column.kind == "difference":
        before = list(results.values(row.baseline, column.measure, shown.name).values())
        if name == row.baseline or not (values and before):
            return NOTHING
        return f"{mean(values) - mean(before):+z.1f}"
    return mean_and_spread(values, FORMATS.get(column.measure, ".1f"))


def gains(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Differences by seed, of the seeds that both have; a teacher has one seed for all."""
    if len(theirs) == 1:
        theirs = dict.fromkeys(ours, *theirs.values())
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def opponent(table: Table, shown: EvalSet, row: Row, column: Column) -> str:
    """The experiment that a row is compared with, or nothing."""
    if not column.against:
        return row.baseline
    if not (row.baseline or row.chooses):
        return ""
    known = {one.key: shown.results.experiment(one, column) for one in table.rows}
    if column.against != BEST_ROW:
        return known.get(column.against) or ""
    bleu = {
        name: mean(values)
        for one in table.rows
        if one.chooses and (name := known[one.key])
        if (values := shown.results.values(name, "bleu", shown.name).values())
    }
    return max(bleu, key=lambda name: bleu[name], default="")


def their_cell(value: float | None, column: Column) -> str:
    if value is None:
        return ""
    sign = "+" * (column.kind in ("difference", "gain"))
    return f"{value:{sign}{FORMATS.get(column.measure, '.1f')}}"


def our_csv_rows(shown: EvalSet, row: Row, column: Column) -> Iterator[dict[str, Any]]:
    """Every value of every seed, and where it comes from."""
    name, results = shown.results.experiment(row, column), shown.results
    if name is None or column.kind not in ("value", "gain"):
        return
    values = results.values(name, column.measure, shown.name)
    if column.kind == "gain":
        values = gains(values, results.values(row.baseline, column.measure, shown.name))
    for seed, value in values.items():
        yield {
            "by": "us",
            "dataset": results.folder.dataset,
            "text": "valid" if shown.is_valid else shown.name,
            "row": row.label,
            "column": column.label,
            "value": value,
            "system": name,
            "seed": seed,
            **results.origin(name, seed, shown.name, measure=column.measure),
        }


def our_lines(table: Table, sets: Sequence[EvalSet]) -> Iterator[Line]:
    for shown in sets:
        for column in table.columns:
            points = [
                (row.x, list(values.values()))
                for row in table.rows
                if row.x is not None
                and (name := row.experiment(column))
                and (values := shown.results.values(name, column.measure, shown.name))
            ]
            if points:
                yield Line(f"{shown.label}: {column.label}", points)


def their_lines(table: Table, reported: Reported) -> Iterator[Line]:
    for dataset in reported.datasets:
        for column in table.columns:
            found = reported_values(reported, dataset, column)
            points = [
                (row.x, [y])
                for row in table.rows
                if row.x is not None and (y := found.get(row.key)) is not None
            ]
            if points:
                yield Line(f"paper, {dataset}: {column.label}", points, is_reported=True)
