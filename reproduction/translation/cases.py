"""Outputs side by side, as in the paper's case study."""

from collections.abc import Sequence

from oaxe.evaluation.page import examples_section
from oaxe.support.tables import TextTable as Figures
from reproduction.translation.records import Records
from reproduction.translation.sheet import Sheet
from reproduction.translation.tables import Table

SHOWN, LISTED = 20, 5  # examples of a data set on the page, and in Markdown


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
        for place, example in enumerate(report["examples"]):
            line = [("source", example["source"]), ("reference", example["references"][0])]
            line += example["outputs"].items()
            sheet.figures += [
                {"by": "us", "dataset": dataset, "text": "test", "row": label, "value": text,
                 "column": f"line {example['line']}"}
                for label, text in line
            ]  # fmt: skip
            if place < LISTED:
                rows = [[label, text.replace("|", "\\|")] for label, text in line]
                sheet.tables.append(Figures(f"{dataset}, line {example['line']}", ["", ""], rows))
    return sheet
