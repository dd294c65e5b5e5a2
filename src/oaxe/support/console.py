"""Output of the commands: wrapped at a terminal, in whole lines to a pipe or a file."""

import os
from typing import IO

from rich.console import Console


def new_console(file: IO[str] | None = None) -> Console:
    """A console on standard output, or on a file.

    Rich assumes 80 columns for a pipe. Tables keep to that width, lines do not. Both keep to
    COLUMNS if it is set.
    """
    console = Console(file=file)
    console.soft_wrap = not (console.is_terminal or os.environ.get("COLUMNS"))
    return console
