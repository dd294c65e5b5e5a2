"""The one plot style: of the synthetic task, of translation, and of the demonstration."""

from collections.abc import Sequence
from math import nan
from statistics import mean, stdev
from typing import TYPE_CHECKING, NamedTuple

from oaxe.evaluation.page import COLOURS, MARKERS
from oaxe.support.html import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

PERCENT = (-4, 104)  # limits of an axis from 0 to 100


class Line(NamedTuple):
    label: str
    points: Sequence[tuple[float, Sequence[float]]]  # x, and the values of all seeds
    is_reported: bool = False  # the paper's: hollow points without a line


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def line_chart(
    lines: Sequence[Line], x_label: str, y_label: str = "BLEU", *, spread: bool = True
) -> "tuple[Figure, Axes]":
    """Means over seeds and, if ``spread``, their standard deviations. The n-th line has the n-th
    colour, also where lines before it have no points."""
    figure, axes = picture()
    for number, (label, points, is_reported) in enumerate(lines):
        if not points:
            continue
        x, y = [x for x, _ in points], [mean(values) for _, values in points]
        marker = MARKERS[number % len(MARKERS)]
        if not spread:
            axes.plot(x, y, f"{marker}-", color=colour(number), label=label)
            continue
        axes.errorbar(
            x,
            y,
            [stdev(values) if len(values) > 1 else nan for _, values in points],
            capsize=3,
            marker=marker,
            linestyle="" if is_reported else "-",
            fillstyle="none" if is_reported else "full",
            color=colour(number),
            label=label,
        )
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", color="gray", alpha=0.3, linewidth=0.8)
    if axes.lines:
        legend(axes)
    return figure, axes


def legend(axes: "Axes") -> "Legend":
    return axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.01), frameon=False, fontsize=11)
