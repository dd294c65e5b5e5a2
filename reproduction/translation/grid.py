"""Most of the paper's tables: a row a system, a column a measure; its figures beside ours."""

from collections.abc import Iterator, Sequence
from itertools import chain
from math import nan
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from oaxe.evaluation.page import MARKERS
from oaxe.support.html import picture
from oaxe.support.tables import NOTHING, mean_and_spread
from oaxe.support.tables import TextTable as Figures
from reproduction.translation.paper import PAPER, Reported
from reproduction.translation.records import Records
from reproduction.translation.sheet import Block, Sheet, blocks_of, colour, finished, origin
from reproduction.translation.tables import Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = list[tuple[float, list[float]]]  # values of all seeds
FORMS = dict.fromkeys(("repetition", "ncm", "brevity"), ".2f")  # others have one digit


class Filled(NamedTuple):
    """A column with its cells, a row each, and with what the CSV says of them."""

    head: str
    cells: list[str]
    figures: list[dict[str, Any]]


def grid(name: str, table: Table, all_records: Sequence[Records]) -> Sheet:
    """A row a system; the columns of each block, and those of the paper."""
    reported = PAPER.get(name, Reported((), {}))
    blocks = [block for records in all_records for block in blocks_of(table, records)]
    ours = [records.place.dataset for records in all_records]
    filled: list[Filled] = []
    for dataset in dict.fromkeys((*ours, *reported.datasets)):  # the same beside each other
        here = [block for block in blocks if block.records.place.dataset == dataset]
        filled += [of_ours(table, block, column) for block in here for column in table.columns]
        wanted = [column for column in table.columns if dataset in ours or not column.is_minor]
        filled += [of_theirs(table, reported, dataset, column) for column in wanted]
    filled = [column for column in filled if any(column.cells)]
    head = ["system", *(column.head for column in filled)]
    lines = [
        [row.label, *(column.cells[i] for column in filled)] for i, row in enumerate(table.rows)
    ]
    sheet = Sheet([Figures(f"{table.about} {table.paper}", head, lines)])
    sheet.figures += chain.from_iterable(column.figures for column in filled)
    if table.text == "several" and not blocks:
        sheet.notes.append(
            "None of these data sets has a test set with several references: English-German has "
            "ott2018-en-de, Tatoeba its own."
        )
    sheet.notes += [reported.note] if reported.note else []
    if table.axis:
        sheet.pictures.append((table.about, against_x(table, blocks, reported)))
    return sheet


def of_ours(table: Table, block: Block, column: Column) -> Filled:
    cells = [cell(block, row, column) for row in table.rows]
    figures = [figure for row in table.rows for figure in figures_of(block, row, column)]
    return Filled(f"{block.label}: {column.label}", cells, figures)


def of_theirs(table: Table, reported: Reported, dataset: str, column: Column) -> Filled:
    found = of_paper(reported, dataset, column)
    cells = [number(found.get(row.key), column) for row in table.rows]
    same = {"by": "paper", "dataset": dataset, "column": column.label}
    figures = [
        {**same, "row": row.label, "value": value}
        for row in table.rows
        if (value := found.get(row.key)) is not None
    ]
    return Filled(f"paper, {dataset}: {column.label}", cells, figures)


def of_paper(reported: Reported, dataset: str, column: Column) -> dict[str, float | None]:
    """By row."""
    if dataset not in reported.datasets:
        return {}
    place = reported.datasets.index(dataset)
    rows = reported.columns.get(column.label, {})
    return {key: values[place] for key, values in rows.items()}


def cell(block: Block, row: Row, column: Column) -> str:
    records, name = block.records, row.system(column)
    if name is None:
        return NOTHING if row.systems else ""
    if column.kind == "p":
        p = records.p_value(name, row.baseline, block.test) if row.baseline else None
        return NOTHING if p is None else f"{p:.4f}"
    values = list(records.values(name, column.measure, block.test).values())
    if column.kind == "difference":
        before = list(records.values(row.baseline, column.measure, block.test).values())
        if name == row.baseline or not (values and before):
            return NOTHING
        return f"{mean(values) - mean(before):+z.1f}"
    return mean_and_spread(values, FORMS.get(column.measure, ".1f"))


def number(value: float | None, column: Column) -> str:
    """One of the paper's."""
    if value is None:
        return ""
    sign = "+" * (column.kind == "difference")
    return f"{value:{sign}{FORMS.get(column.measure, '.1f')}}"


def figures_of(block: Block, row: Row, column: Column) -> Iterator[dict[str, Any]]:
    """For the CSV: every value of every seed, and where it comes from."""
    name, records = row.system(column), block.records
    if name is None or column.kind != "value":
        return
    for seed, value in records.values(name, column.measure, block.test).items():
        yield {
            "by": "us",
            "dataset": records.place.dataset,
            "text": "valid" if block.is_valid else block.test,
            "row": row.label,
            "column": column.label,
            "value": value,
            "system": name,
            "seed": seed,
            **origin(records, name, seed, block.test, measure=column.measure),
        }


def against_x(table: Table, blocks: Sequence[Block], reported: Reported) -> "Figure":
    """Lines of means over seeds with their standard deviations; the paper's points are hollow."""
    figure, axes = picture()
    lines = [*our_lines(table, blocks), *their_points(table, reported)]
    for count, (label, points, style) in enumerate(lines):
        axes.errorbar(
            [x for x, _ in points],
            [mean(values) for _, values in points],
            [stdev(values) if len(values) > 1 else nan for _, values in points],
            capsize=3,
            marker=MARKERS[count % len(MARKERS)],
            linestyle=style,
            fillstyle="full" if style else "none",
            color=colour(count),
            label=label,
        )
    return finished(figure, table.axis)


def our_lines(table: Table, blocks: Sequence[Block]) -> Iterator[tuple[str, Points, str]]:
    for block in blocks:
        for column in table.columns:
            points = [
                (row.x, list(values.values()))
                for row in table.rows
                if row.x is not None
                and (name := row.system(column))
                and (values := block.records.values(name, column.measure, block.test))
            ]
            if points:
                yield f"{block.label}: {column.label}", points, "-"


def their_points(table: Table, reported: Reported) -> Iterator[tuple[str, Points, str]]:
    for dataset in reported.datasets:
        for column in table.columns:
            found = of_paper(reported, dataset, column)
            points = [
                (row.x, [y])
                for row in table.rows
                if row.x is not None and (y := found.get(row.key)) is not None
            ]
            if points:
                yield f"paper, {dataset}: {column.label}", points, ""
