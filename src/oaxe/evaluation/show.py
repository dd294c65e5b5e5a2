"""A report in the terminal and as files: JSON, a page, and the outputs that were scored."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from oaxe.evaluation.models import decodings
from oaxe.evaluation.outputs import Output
from oaxe.evaluation.page import report_page
from oaxe.evaluation.tables import Report, all_tables, signatures
from oaxe.support.errors import UserError
from oaxe.support.files import write_together


def show(report: Report, console: Console) -> None:
    for title, head, rows in all_tables(report):
        console.print(title, style="bold")
        table = Table()
        for column, name in enumerate(head):
            table.add_column(name, justify="right" if column else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in (*decodings(report), *signatures(report), *report["notes"]):
        console.print(line, soft_wrap=True)


def write(
    report: Report, outputs: Sequence[Output], json_path: Path | None, folder: Path | None
) -> None:
    """Write the report as JSON; into a folder also the page and the scored outputs."""
    scores = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    files = {} if json_path is None else {json_path: scores}
    if folder is not None:
        for output in outputs:
            files[folder / f"{output.name}.hyp.txt"] = "".join(f"{t}\n" for t in output.scored)
        files[folder / "scores.json"] = scores
        files[folder / "report.html"] = report_page(report)
    try:
        write_together(files)
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename}: {error.strerror}; choose another file"
        ) from None
