"""Tables of figures as text, whoever shows them: Markdown, a page, a terminal."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

NOTHING = "-"


class Figures(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]


def markdown(figures: Figures) -> str:
    rows = [figures.head, ["---"] * len(figures.head), *figures.rows]
    return f"**{figures.title}**\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


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
