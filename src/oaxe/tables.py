"""Tables of figures as text, whoever shows them: Markdown, a page, a terminal."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "-"


class Figures(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]


def markdown(figures: Figures) -> str:
    rows = [figures.head, ["---"] * len(figures.head), *figures.rows]
    return f"**{figures.title}**\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def show(figures: Figures, console: "Console") -> None:
    """In the terminal."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(figures.title, style="bold"))
    table = Table()
    for column, name in enumerate(figures.head):
        table.add_column(name, justify="right" if column else "left")
    for row in figures.rows:
        table.add_row(*map(Text, row))
    console.print(table)


def mean_and_spread(values: Sequence[float], form: str = ".1f") -> str:
    """Over seeds: the mean and, of two or more, the standard deviation.

    Example:
        >>> mean_and_spread([1.0, 2.0, 3.0])
        '2.0 ± 1.0'
    """
    if not values:
        return NOTHING
    spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{spread}"
