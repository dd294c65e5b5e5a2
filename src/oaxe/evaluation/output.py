"""What `oaxe evaluate` leaves behind: figures, a page, and the outputs that were scored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oaxe.evaluation.page import report_page
from oaxe.evaluation.systems import System
from oaxe.support.errors import UserError
from oaxe.support.files import write_whole


def make_folder(folder: Path) -> None:
    """Before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {folder}: {error.strerror}; choose another place"
        ) from None


def write(
    report: dict[str, Any], systems: Sequence[System], json_path: Path | None, folder: Path | None
) -> None:
    """The figures as JSON; in a folder also the page and the outputs that were scored."""
    figures = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    files = {} if json_path is None else {json_path: figures}
    if folder is not None:
        for system in systems:
            files[folder / f"{system.name}.hyp.txt"] = "".join(f"{t}\n" for t in system.output)
        files[folder / "scores.json"] = figures
        files[folder / "report.html"] = report_page(report)
    try:
        for path, text in files.items():
            write_whole(path, text)
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename}: {error.strerror}; choose another place"
        ) from None
