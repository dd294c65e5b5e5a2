"""Tables as text, for Markdown, pages and terminals."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

NOTHING = "-"  # an empty cell


class TextTable(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]


def markdown(table: TextTable) -> str:
    return f"**{table.title}**\n\n{grid(table.head, table.rows)}"


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without title, as Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def number(value: float | None, form: str = ".1f") -> str:
    """A cell.

    Example:
        >>> number(1.25, ".2f"), number(None)
        ('1.25', '-')
    """
    return NOTHING if value is None else f"{value:{form}}"


def mean_and_spread(values: Sequence[float], form: str = ".1f") -> str:
    """The mean over seeds and, of two or more, the standard deviation.

    Example:
        >>> mean_and_spread([1.0, 2.0, 3.0])
        '2.0 ± 1.0'
    """
    if not values:
        return NOTHING
    spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{spread}"
