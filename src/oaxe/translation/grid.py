"""Most of the paper's tables: a row a system, a column a measure; its figures beside ours."""

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from oaxe.evaluation.page import MARKERS
from oaxe.html import picture
from oaxe.tables import NOTHING, Figures, mean_and_spread
from oaxe.translation.paper import PAPER, Reported
from oaxe.translation.records import Records
from oaxe.translation.sheet import Block, Sheet, colour, finished, origin
from oaxe.translation.tables import Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMS = {"repetition": ".2f", "ncm": ".2f"}  # of measures; every other has one digit


def grid(name: str, table: Table, all_records: Sequence[Records]) -> Sheet:
    """A row a system; the columns of each block, and those of the paper."""
    sheet, reported = Sheet(), PAPER.get(name, Reported((), {}))
    blocks = [block for records in all_records for block in blocks_of(table, records)]
    ours = [records.place.dataset for records in all_records]
    head, cells = ["system"], [[row.label] for row in table.rows]
    for dataset in dict.fromkeys((*ours, *reported.datasets)):  # the same beside each other
        for block in blocks:
            if block.records.place.dataset == dataset:
                for column in table.columns:
                    head.append(f"{block.label}: {column.label}")
                    for row, line in zip(table.rows, cells, strict=True):
                        line.append(cell(block, row, column))
                        sheet.figures += figures_of(block, row, column)
        for column in table.columns:
            found = of_paper(reported, dataset, column)
            if any(value is not None for value in found.values()) and (
                dataset in ours or not column.is_minor
            ):
                head.append(f"paper, {dataset}: {column.label}")
                for row, line in zip(table.rows, cells, strict=True):
                    line.append(number(found.get(row.key), column))
                sheet.figures += [
                    {"by": "paper", "dataset": dataset, "row": row.label, "column": column.label,
                     "value": found[row.key]}
                    for row in table.rows if found.get(row.key) is not None
                ]  # fmt: skip
    if not blocks:
        sheet.notes.append("none of these data sets has a test set with several references")
    sheet.notes += [reported.note] if reported.note else []
    sheet.tables.append(Figures(f"{table.about} {table.paper}", head, cells))
    if table.axis:
        sheet.pictures.append((table.about, against_x(table, blocks, reported)))
    return sheet


def blocks_of(table: Table, records: Records) -> list[Block]:
    if table.text in ("test", "valid"):
        return [Block(records, "test", table.text == "valid")]
    wanted = table.text == "several"
    return [Block(records, test) for test, most in records.tests().items() if (most > 1) == wanted]


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
        is_own = name == row.baseline
        return (
            NOTHING if is_own or not (values and before) else f"{mean(values) - mean(before):+.1f}"
        )
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
            **origin(records, name, seed, block.test),
        }


def against_x(table: Table, blocks: Sequence[Block], reported: Reported) -> "Figure":
    """Lines of means over seeds; the paper's points are hollow."""
    figure, axes = picture()
    number = 0
    for block in blocks:
        for column in table.columns:
            points = [
                (row.x, mean(values.values()))
                for row in table.rows
                if (name := row.system(column))
                and (values := block.records.values(name, column.measure, block.test))
            ]
            if points:
                style = f"{MARKERS[number % len(MARKERS)]}-"
                label = f"{block.label}: {column.label}"
                axes.plot(*zip(*points, strict=True), style, label=label, color=colour(number))
            number += 1
    for dataset in reported.datasets:
        for column in table.columns:
            found = of_paper(reported, dataset, column)
            there = [(r.x, y) for r in table.rows if (y := found.get(r.key)) is not None]
            if there:
                label, marker = f"paper, {dataset}: {column.label}", MARKERS[number % len(MARKERS)]
                axes.plot(
                    *zip(*there, strict=True),
                    marker,
                    fillstyle="none",
                    label=label,
                    color=colour(number),
                )
            number += 1
    return finished(figure, table.axis)
