"""From results to tables and pictures in the paper's layout, its own figures beside ours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

from oaxe.evaluation.page import COLOURS, MARKERS, examples_section
from oaxe.evaluation.tables import speed
from oaxe.html import picture
from oaxe.tables import NOTHING, Figures, mean_and_spread
from oaxe.translation.paper import PAPER, TIMES_XE, Reported
from oaxe.translation.records import Records, read_json
from oaxe.translation.tables import Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMS = {"repetition": ".2f", "ncm": ".2f"}  # of measures; every other has one digit
OUT_OF_DOMAIN = {"ott2018", "newstest2014"}
SHOWN, LISTED = 20, 5  # examples on the page, and in Markdown


@dataclass
class Sheet:
    """All that is said about one table of the paper."""

    tables: list[Figures] = field(default_factory=list)
    pictures: list[tuple[str, "Figure"]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)  # one a line of the CSV
    notes: list[str] = field(default_factory=list)
    body: str = ""  # more of the page


@dataclass(frozen=True)
class Block:
    """The columns of one test set of one data set."""

    records: Records
    test: str
    is_valid: bool = False

    @property
    def label(self) -> str:
        dataset = self.records.place.dataset
        if self.is_valid:
            return f"{dataset} valid"
        if self.test == "test":
            return dataset
        away = self.test in OUT_OF_DOMAIN and not dataset.startswith("wmt14")
        return f"{dataset} on {self.test}{', out of domain' * away}"


def lay_out(name: str, table: Table, all_records: Sequence[Records]) -> Sheet:
    return {"grid": grid, "lengths": lengths, "speed": speeds, "cases": cases}[table.form](
        name, table, all_records
    )


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


def origin(records: Records, system: str, seed: int, test: str) -> dict[str, Any]:
    result = records.of(system).get(seed)
    if result is None:
        return {}
    place, environment = records.place, result["environment"]
    scores = result["tests"].get(test)
    return {
        "preset": place.preset,
        "updates": result["training"]["step"],
        "seconds": result["training"]["seconds"],
        "commit": environment["commit"],
        "device": environment["device"],
        "signature": scores["bleu"]["signature"] if scores else None,
        "result": place.result(system, seed).relative_to(place.out).as_posix(),
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


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def finished(figure: "Figure", axis: str) -> "Figure":
    (axes,) = figure.axes
    axes.set_xlabel(axis)
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="gray", alpha=0.3, linewidth=0.8)
    if axes.lines:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.01), frameon=False, fontsize=11)
    return figure


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
        for test in records.tests():
            for heading, rows in sections(table).items():
                block = Block(records, test)
                add_lengths(sheet, f"{block.label}: {heading.lower()}", block, rows)
    return sheet


def add_lengths(sheet: Sheet, title: str, block: Block, rows: Sequence[Row]) -> None:
    figure, axes = picture()
    lines, labels = [], list[str]()
    for number, row in enumerate(rows):
        results = block.records.of(row.systems[0])
        by_seed = {
            seed: r["tests"][block.test]["bleu_by_length"] for seed, r in results.items()
        }  # fmt: skip
        if not by_seed:
            continue
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
            Figures(f"BLEU by words of the reference (sentences), {title}", head, lines)
        )
        axes.set_xticks(range(len(labels)), [label.split(" (")[0] for label in labels])
        sheet.pictures.append((title, finished(figure, "words of the reference")))


def speeds(name: str, table: Table, all_records: Sequence[Records]) -> Sheet:
    sheet = Sheet(notes=[
        "Training: target tokens a second while updating, validation and saving not counted; "
        "time against XE is that of an equal number of tokens in the same stage. Where several "
        "processes shared a device, it says so, and seconds cannot be compared.",
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
        if timed := read_json(records.place.results / "speed.json"):
            report = {"systems": {n: {"speed": s} for n, s in timed["systems"].items()}}
            title, head, rows = speed(report)
            device = timed["environment"]["device"]
            sheet.tables.append(Figures(f"{dataset}: decoding. {title}, {device}", head, rows))
        else:
            sheet.notes.append(f"{dataset}: decoding was not timed")
    return sheet


def training_speed(dataset: str, table: Table, records: Records) -> Figures:
    xe = records.of("xe").get(1, {}).get("training", {}).get("tokens_per_second")
    lines = []
    for row in table.rows:
        for seed, result in records.of(row.systems[0]).items():
            training = result["training"]
            own, shared = training["tokens_per_second"], training["processes_on_device"]
            is_tuned = result["settings"]["train"]["init_from"] is not None
            lines.append([
                f"{row.label}{f', seed {seed}' * (seed > 1)}",
                f"{training['step']:,}",
                f"{training['seconds']:,.0f}",
                f"{own:,.0f}" if own else NOTHING,
                f"{xe / own:.2f}" if own and xe and is_tuned else NOTHING,
                f"{TIMES_XE}" if row.systems[0] == "oaxe" else "",
                result["environment"]["device"] + f", {shared} processes" * (shared > 1),
            ])  # fmt: skip
    head = ["system", "updates", "seconds of updates", "target tokens a second"]
    return Figures(
        f"{dataset}: training", [*head, "time against XE", "paper", "device"], lines
    )  # fmt: skip


def cases(name: str, table: Table, all_records: Sequence[Records]) -> Sheet:
    """The sentences whose chrF differs most; more of them on the page than in Markdown."""
    sheet = Sheet()
    systems = [row.systems[0] for row in table.rows]
    for records in all_records:
        dataset = records.place.dataset
        report = records.side_by_side(systems, "test", SHOWN)
        if report is None:
            sheet.notes.append(f"{dataset}: there are no outputs to show")
            continue
        sheet.body += f"<h2>{dataset}</h2>" + examples_section(report)
        for example in report["examples"]:
            line = [("source", example["source"]), ("reference", example["references"][0])]
            line += example["outputs"].items()
            sheet.figures += [
                {"by": "us", "dataset": dataset, "text": "test", "row": label, "value": text,
                 "column": f"line {example['line']}"}
                for label, text in line
            ]  # fmt: skip
            if len(sheet.tables) < LISTED:
                rows = [[label, text.replace("|", "\\|")] for label, text in line]
                sheet.tables.append(Figures(f"{dataset}, line {example['line']}", ["", ""], rows))
    return sheet
