"""Where commands speak: wrapped at a terminal, in whole lines to a pipe or a file."""

import os
from typing import IO

from rich.console import Console


def new_console(file: IO[str] | None = None) -> Console:
    """On standard output, or on a file.

    Rich takes 80 columns for the width of a pipe, which has none; tables keep to that, lines do
    not. COLUMNS, where it is set, is the width of both.
    """
    console = Console(file=file)
    console.soft_wrap = not (console.is_terminal or os.environ.get("COLUMNS"))
    return console
