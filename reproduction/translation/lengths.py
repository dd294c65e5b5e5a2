"""BLEU by length of the reference: a table and a picture for each test set."""

from collections.abc import Sequence
from statistics import mean

from oaxe.evaluation.page import MARKERS
from oaxe.support.html import picture
from oaxe.support.tables import TextTable as Figures
from oaxe.support.tables import mean_and_spread
from reproduction.translation.records import Records
from reproduction.translation.sheet import Block, Sheet, blocks_of, colour, finished, origin
from reproduction.translation.tables import Row, Table


def sections(table: Table) -> dict[str, list[Row]]:
    """The rows below each heading."""
    found: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.systems:
            found[next(reversed(found))].append(row)
        else:
            found[row.label] = []
    return found


def lengths(name: str, table: Table, all_records: Sequence[Records]) -> Sheet:
    """A table and a picture for each test set and each kind of training data."""
    sheet = Sheet()
    for records in all_records:
        for block in blocks_of(table, records):
            for heading, rows in sections(table).items():
                add_lengths(sheet, f"{block.label}: {heading.lower()}", block, rows)
    return sheet


def add_lengths(sheet: Sheet, title: str, block: Block, rows: Sequence[Row]) -> None:
    figure, axes = picture()
    lines, labels, unit = [], list[str](), ""
    for number, row in enumerate(rows):
        results = block.records.of(row.systems[0])
        tests = {s: r["tests"][block.test] for s, r in results.items() if block.test in r["tests"]}
        if not tests:
            continue
        by_seed = {seed: scores["bleu_by_length"] for seed, scores in tests.items()}
        unit = next(iter(tests.values()))["unit"]
        first = next(iter(by_seed.values()))
        labels = [f"{bucket['label']} ({bucket['sentences']:,})" for bucket in first]
        scores = [
            [buckets[i]["bleu"] for buckets in by_seed.values() if buckets[i]["bleu"] is not None]
            for i in range(len(first))
        ]
        lines.append([row.label, *map(mean_and_spread, scores)])
        points = [(i, mean(values)) for i, values in enumerate(scores) if values]
        style = f"{MARKERS[number]}-"
        axes.plot(*zip(*points, strict=True), style, color=colour(number), label=row.label)
        sheet.figures += [
            {"by": "us", "dataset": block.records.place.dataset, "text": block.test,
             "row": title, "column": bucket["label"], "value": bucket["bleu"],
             "system": row.systems[0], "seed": seed,
             **origin(block.records, row.systems[0], seed, block.test)}
            for seed, buckets in by_seed.items() for bucket in buckets
        ]  # fmt: skip
    if lines:
        head = ["system", *labels]
        sheet.tables.append(
            Figures(f"BLEU by {unit} of the reference (sentences), {title}", head, lines)
        )
        axes.set_ylim(bottom=0)
        ticks = {i: label for i, label in enumerate(labels) if not label.endswith("(0)")}
        axes.set_xticks([*ticks], [label.replace(" (", "\n(") for label in ticks.values()])
        sheet.pictures.append((title, finished(figure, f"{unit} of the reference (sentences)")))
