"""The page of the demonstration: one file for a newcomer, of whatever was done until it ended."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oaxe.losses.plots import STYLES
from oaxe.support.files import write_whole
from oaxe.support.html import page, paragraph, picture, scroll, svg, table
from reproduction.synthetic.display import (
    LEGEND,
    NAMES,
    Result,
    curve,
    figures,
    gaps,
    interpretation,
    marks,
    modes_of,
    part,
    verdict,
)
from reproduction.synthetic.task import ORDERINGS, PROBABILITIES, reorder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Several right orders, one answer: XE against OaXE"
STYLE = """
.repeated { color: var(--red); font-weight: 700; text-decoration: underline double }
.misplaced { color: var(--amber); text-decoration: underline dotted }
.numbers td { padding: .3rem; min-width: 1.2em }
.numbers td:last-child { text-align: left; padding-left: .8rem }
"""
SETTINGS = {
    "orders (modes)": ("task", "modes"),
    "different numbers": ("task", "numbers"),
    "shortest sequence": ("task", "shortest"),
    "longest sequence": ("task", "longest"),
    "training pairs": ("task", "train"),
    "validation pairs": ("task", "valid"),
    "test pairs": ("task", "test"),
    "updates of XE": ("updates", "xe"),
    "updates of OaXE, with its start": ("updates", "oaxe"),
    "of these with XE, as a start": ("updates", "pretraining"),
    "seconds": ("seconds",),
}


def write_report(result: Result, path: Path) -> None:
    """Write the page of a result of which any part may be missing."""
    note = gaps(result)
    sections = [
        paragraph(interpretation(result), "lead"),
        paragraph(note, "note") if note else "",
        _task(result),
        _figures(result),
        _examples(result),
        _curves(result),
        _by_modes(result),
        _chosen(result),
        _matrix(result),
        _settings(result),
    ]
    write_whole(path, page(TITLE, "\n".join(filter(None, sections)), STYLE))


def _task(result: Result) -> str:
    modes, numbers = modes_of(result), [1, 3, 10, 7, 9, 2]
    answers = {ORDERINGS[mode]: reorder(numbers, mode) for mode in range(modes)}
    rows = [_row(name, row) for name, row in {"source": numbers, **answers}.items()]
    return (
        "<h2>The task</h2>"
        + paragraph(
            f"The model reads a row of numbers and writes the same numbers in any one of {modes} "
            "orders; each of them is right. For every pair of the training data the order was "
            "drawn at random, so the model cannot know which one is asked for, just as a "
            "translator cannot know which of several good word orders its reference has. It writes "
            "all numbers at once, so where it does not settle on one order, it says some numbers "
            "twice and others never."
        )
        + _numbers("A source and its right answers", rows)
    )


def _figures(result: Result) -> str:
    head, *rows = figures(result)
    return (
        "<h2>The result</h2>"
        + paragraph(
            "Cross entropy (XE) demands the order that was drawn, number by number. Order-agnostic "
            "cross entropy (OaXE) takes over a model that began with XE, and demands the order "
            "that this model already likes best."
        )
        + table("Measured on sequences that neither has seen", head, rows)
        + paragraph(
            "Exact match: answers that are right from the first number to the last, in any of the "
            "orders. Repetition: numbers that are said more often than the source has them. Mean "
            "confidence: the probability that the model gives to the numbers it writes.",
            "soft",
        )
    )


def _examples(result: Result) -> str:
    examples, modes = part(result, "examples"), modes_of(result)
    if not examples:
        return ""
    legend = " ".join(
        f'<span class="{mark}">{mark}</span>: {escape(meaning)}.'
        for mark, meaning in LEGEND.items()
    )
    tables = [_example(count, example, modes) for count, example in enumerate(examples, 1)]
    return f'<h2>Examples</h2><p class="soft">{legend}</p>' + "".join(tables)


def _example(count: int, example: Result, modes: int) -> str:
    source = example["source"]
    rows = [_row("source", source)]
    for key, name in NAMES.items():
        output = example.get(key)
        if output is not None:
            found = marks(output, source, modes)
            rows.append(_row(name, output, found, verdict(output, source, modes)))
    return _numbers(f"Example {count}", rows)


def _numbers(name: str, rows: list[str]) -> str:
    return scroll(name, f'<tbody class="numbers">{"".join(rows)}</tbody>')


def _row(name: str, numbers: list[int], found: Sequence[str] = (), says: str = "") -> str:
    cells = "".join(
        f'<td><span class="{mark}" title="{mark}">{escape(str(number))}</span></td>'
        for mark, number in zip(found or ["right"] * len(numbers), numbers, strict=True)
    )
    return f'<tr><th scope="row">{name}</th>{cells}<td>{escape(says)}</td></tr>'


def _curves(result: Result) -> str:
    xe, oaxe = curve(result, "xe"), curve(result, "oaxe")
    if not xe and not oaxe:
        return ""
    switch = part(result, "updates", "pretraining")
    if switch is not None and oaxe:  # OaXE branches off from what XE had reached by then
        shared = sorted(point for point in xe + oaxe if point[0] <= switch)
        after = [point for point in oaxe if point[0] > switch]
        oaxe = shared[-1:] + after if after else []
    figure, axes = picture()
    _lines(axes, {"XE": xe, "OaXE": oaxe}, {"XE": "XE", "OaXE": "XE, then OaXE"})
    if switch is not None:
        axes.axvline(switch, color="black", linewidth=1, linestyle=":")
        axes.annotate(
            "switch", (switch, 50), (-6, 0), textcoords="offset points", ha="right", size=11
        )
    axes.set_xlabel("updates")
    return (
        "<h2>How they learn</h2>"
        + svg(figure, "Exact match over updates, of XE and of XE followed by OaXE")
        + paragraph("Exact match on validation data while training.", "soft")
    )


def _by_modes(result: Result) -> str:
    by_modes = part(result, "by_modes")
    if not by_modes:
        return ""
    figure, axes = picture()
    lines = {
        name: [
            (int(modes), values[key])
            for modes, values in sorted(by_modes.items())
            if part(values, key) is not None
        ]
        for key, name in NAMES.items()
    }
    _lines(axes, lines, {name: name for name in lines})
    axes.set_xticks(sorted(int(modes) for modes in by_modes))
    axes.set_xlabel("number of right orders")
    return "<h2>By number of right orders</h2>" + svg(
        figure, "Exact match by number of right orders, of XE and of OaXE"
    )


def _chosen(result: Result) -> str:
    chosen = part(result, "chosen")
    counts = {name: part(chosen, key) for key, name in NAMES.items() if part(chosen, key)}
    if not counts:
        return ""
    modes = modes_of(result)
    drawn = dict(zip(ORDERINGS, PROBABILITIES[modes], strict=False))
    rows = []
    for ordering in (*ORDERINGS[:modes], "none"):
        shares = [
            100 * (of.get(ordering) or 0) / max(sum(of.values()), 1) for of in counts.values()
        ]
        given = f"{100 * drawn[ordering]:.0f} %" if ordering in drawn else "-"
        name = "none of them" if ordering == "none" else ordering
        rows.append([name, given, *(f"{share:.1f} %" for share in shares)])
    return "<h2>Which order they choose</h2>" + table(
        "Share of the answers; the training data for comparison",
        ["order", "training data", *counts],
        rows,
    )


def _matrix(result: Result) -> str:
    matrix = part(result, "matrix")
    source, target, probability, place_of = (
        part(matrix, name) for name in ("source", "target", "probability", "place_of")
    )
    if not (target and probability and place_of):
        return ""
    found = [target[column] for column in place_of]
    name = _ordering(found, source or [], modes_of(result))
    drawn = part(matrix, "ordering")
    return (
        "<h2>One sequence at the switch</h2>"
        + svg(
            _draw_matrix(target, probability, place_of),
            "Cost matrix of one sequence, with the places that XE and OaXE demand",
        )
        + paragraph(
            "A row is a place of the answer, a column a number of the target"
            + (f" (drawn: {drawn})" if drawn else "")
            + "; the more ink in a cell, the likelier the model finds that number in that place. "
            "XE (squares) demands the target as it was drawn. OaXE (dots) finds the most likely "
            f"order in which each number is used once: {' '.join(map(str, found))}, which is "
            + (f"{name}. " if name else "not quite one of the right orders. ")
            + "Beside each name stands the mean probability of its cells.",
            "soft",
        )
    )


def _ordering(numbers: list[int], source: list[int], modes: int) -> str:
    names = [ORDERINGS[mode] for mode in range(modes) if reorder(source, mode) == numbers]
    return names[0] if names else ""


def _draw_matrix(
    target: list[int], probability: list[list[float]], place_of: list[int]
) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap

    n = len(target)
    figure, axes = picture(height=4.8)
    ink = LinearSegmentedColormap.from_list("ink", [(0, 0, 0, 0), (0, 0, 0, 0.6)])
    axes.pcolormesh(range(n), range(n), probability, cmap=ink, vmin=0, vmax=1, linewidth=0)
    for name, columns in {"XE": list(range(n)), "OaXE": place_of}.items():
        colour, marker, size = STYLES[name]
        mean = sum(probability[place][column] for place, column in enumerate(columns)) / n
        axes.plot(
            columns,
            range(n),
            linestyle="none",
            marker=marker,
            markersize=size * min(1.0, 6.5 / n),
            markerfacecolor=colour if name == "OaXE" else "none",
            markeredgecolor=colour,
            markeredgewidth=1.8,
            label=f"{name}, probability {mean:.2f}",
        )
    small = min(11.0, 180 / n)  # points: as large as fits
    upright = n * max(len(str(number)) for number in target) > 36
    axes.set_xticks(range(n), map(str, target), rotation=90 if upright else 0, size=small)
    axes.set_yticks(range(n), [str(place + 1) for place in range(n)], size=small)
    axes.set_xlabel("number of the target")
    axes.set_ylabel("place in the answer")
    axes.tick_params(length=0)
    axes.invert_yaxis()
    for handle in _legend(axes):
        handle.set_markersize(10)
    return figure


def _settings(result: Result) -> str:
    values = [(name, part(result, *names)) for name, names in SETTINGS.items()]
    rows = [[name, f"{value:,}"] for name, value in values if value is not None]
    seed, again = result.get("seed"), ""
    if seed is not None:
        rows.insert(0, ["seed", str(seed)])
        again = f"<p>Again: <code>oaxe demo --seed {escape(str(seed))}</code></p>"
    if not rows:
        return ""
    return f"<h2>Settings</h2>{table('Of this run', ['setting', 'value'], rows)}{again}"


def _lines(axes: "Axes", lines: dict[str, list[tuple[int, float]]], labels: dict[str, str]) -> None:
    for name, points in lines.items():
        if points:
            colour, marker, _ = STYLES[name]
            steps, values = zip(*points, strict=True)
            axes.plot(
                steps, values, color=colour, marker=marker, linewidth=2.4, label=labels[name],
                markersize=5,
            )  # fmt: skip
    axes.set_ylim(-4, 104)
    axes.set_ylabel("exact match, %")
    axes.grid(axis="y", color="gray", alpha=0.3, linewidth=0.8)
    _legend(axes)


def _legend(axes: "Axes") -> Any:
    legend = axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.01), ncols=2, frameon=False, fontsize=12
    )
    return legend.get_lines()
