"""Outputs side by side, as in the paper's case study."""

from collections.abc import Sequence

from oaxe.evaluation.page import examples_section
from oaxe.support.tables import TextTable
from reproduction.report import Report
from reproduction.results import Results
from reproduction.tables import Table

SHOWN, LISTED = 20, 5  # examples of a data set on the page, and in Markdown


def cases(name: str, table: Table, all_results: Sequence[Results]) -> Report:
    """The sentences whose chrF differs most; more of them on the page than in Markdown."""
    report = Report()
    for results in all_results:
        dataset = results.folder.dataset
        evaluated = results.side_by_side([row.key for row in table.rows], "test", SHOWN)
        if evaluated is None:
            report.notes.append(f"{dataset}: there are no outputs to show")
            continue
        report.body += f"<h2>{dataset}</h2>" + examples_section(evaluated)
        for number, example in enumerate(evaluated["examples"]):
            lines = [("source", example["source"]), ("reference", example["references"][0])]
            lines += example["outputs"].items()
            report.csv_rows += [
                {"by": "us", "dataset": dataset, "text": "test", "row": label, "value": text,
                 "column": f"line {example['line']}"}
                for label, text in lines
            ]  # fmt: skip
            if number < LISTED:
                rows = [[label, text.replace("|", "\\|")] for label, text in lines]
                report.tables.append(
                    TextTable(f"{dataset}, line {example['line']}", ["", ""], rows)
                )
    return report
