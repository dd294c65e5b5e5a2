"""Output of the commands: wrapped at a terminal, in whole lines to a pipe or a file."""

import os
import sys
from typing import IO

from rich.console import Console


class Patient(Console):
    """A closed pipe, as after `| head`, is no failure: the work goes on without output."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def new_console(file: IO[str] | None = None) -> Console:
    """A console on standard output, or on a file, which prints brackets and numbers as they are.

    Rich assumes 80 columns for a pipe. Tables keep to that width, lines do not. Both keep to
    COLUMNS if it is set.
    """
    console = Patient(file=file, highlight=False, markup=False)
    console.soft_wrap = not (console.is_terminal or os.environ.get("COLUMNS"))
    return console
