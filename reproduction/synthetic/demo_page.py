"""The page of the demonstration: one file for a newcomer, with all that was done until it ended."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from oaxe.support.files import write_whole
from oaxe.support.html import page, paragraph, picture, scroll, svg, table
from reproduction.charts import PERCENT, Line, colour, legend, line_chart
from reproduction.synthetic.demo_text import (
    LEGEND,
    NAMES,
    Result,
    curve,
    gaps,
    interpretation,
    marks,
    modes_of,
    part,
    score_table,
    verdict,
)
from reproduction.synthetic.task import ORDERINGS, PROBABILITIES, reorder

if TYPE_CHECKING:
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


def write_page(result: Result, path: Path) -> None:
    """Any part of the result may be missing."""
    note = gaps(result)
    sections = [
        paragraph(interpretation(result), "lead"),
        paragraph(note, "note") if note else "",
        _task(result),
        _scores(result),
        _examples(result),
        _curves(result),
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
            "translator cannot know which of several good word orders its reference has. It "
            "predicts all numbers in one pass, so where it does not settle on one order, it "
            "repeats some numbers and omits others."
        )
        + _numbers("A source and its right answers", rows)
    )


def _scores(result: Result) -> str:
    head, *rows = score_table(result)
    return (
        "<h2>The result</h2>"
        + paragraph(
            "Cross entropy (XE) trains on the order that was drawn, number by number. "
            "Order-agnostic cross entropy (OaXE) continues from a model that began with XE, and "
            "trains on the order that this model already finds likeliest."
        )
        + table("Measured on test sequences", head, rows)
        + paragraph(
            "Exact match: answers that are right from the first number to the last, in any of the "
            "orders. Repetition: numbers that the output has more often than the source. Mean "
            "confidence: the probability that the model gives to its output numbers.",
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
    lines = {"XE": xe, "XE, then OaXE": oaxe}
    figure, axes = line_chart(
        [
            Line(label, [(step, [value]) for step, value in points])
            for label, points in lines.items()
        ],
        "updates",
        "exact match, %",
        spread=False,
    )
    axes.set_ylim(*PERCENT)
    if switch is not None:
        axes.axvline(switch, color="black", linewidth=1, linestyle=":")
        axes.annotate(
            "switch", (switch, 50), (-6, 0), textcoords="offset points", ha="right", size=11
        )
    return (
        "<h2>Learning curves</h2>"
        + svg(figure, "Exact match over updates, of XE and of XE followed by OaXE")
        + paragraph("Exact match on validation data during training.", "soft")
    )


def _chosen(result: Result) -> str:
    chosen = part(result, "chosen")
    outputs = {name: part(chosen, key) for key, name in NAMES.items() if part(chosen, key)}
    if not outputs:
        return ""
    modes = modes_of(result)
    drawn = dict(zip(ORDERINGS, PROBABILITIES[modes], strict=False))
    rows = []
    for ordering in (*ORDERINGS[:modes], "none"):
        shares = [
            100 * (of.get(ordering) or 0) / max(sum(of.values()), 1) for of in outputs.values()
        ]
        given = f"{100 * drawn[ordering]:.0f} %" if ordering in drawn else "-"
        name = "none of them" if ordering == "none" else ordering
        rows.append([name, given, *(f"{share:.1f} %" for share in shares)])
    return "<h2>Which order they choose</h2>" + table(
        "Share of the answers; the training data for comparison",
        ["order", "training data", *outputs],
        rows,
    )


def _matrix(result: Result) -> str:
    matrix = part(result, "matrix")
    source, target, probability, order = (
        part(matrix, name) for name in ("source", "target", "probability", "order")
    )
    if not (target and probability and order):
        return ""
    found = [target[column] for column in order]
    name = _ordering(found, source or [], modes_of(result))
    drawn = part(matrix, "ordering")
    return (
        "<h2>One sequence at the switch</h2>"
        + svg(
            _draw_matrix(target, probability, order),
            "Cost matrix of one sequence, with the orders that XE and OaXE train on",
        )
        + paragraph(
            "A row is a position of the answer, a column a number of the target"
            + (f" (drawn: {drawn})" if drawn else "")
            + "; the darker a cell, the likelier the model finds that number at that position. "
            "XE (squares) trains on the target as it was drawn. OaXE (dots) finds the most likely "
            f"order in which each number is used once: {' '.join(map(str, found))}, which is "
            + (f"{name}. " if name else "not quite one of the right orders. ")
            + "Beside each name stands the mean probability of its cells.",
            "soft",
        )
    )


def _ordering(numbers: list[int], source: list[int], modes: int) -> str:
    names = [ORDERINGS[mode] for mode in range(modes) if reorder(source, mode) == numbers]
    return names[0] if names else ""


def _draw_matrix(target: list[int], probability: list[list[float]], order: list[int]) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap

    n = len(target)
    figure, axes = picture(height=4.8)
    ink = LinearSegmentedColormap.from_list("ink", [(0, 0, 0, 0), (0, 0, 0, 0.6)])
    axes.pcolormesh(range(n), range(n), probability, cmap=ink, vmin=0, vmax=1, linewidth=0)
    for number, (name, columns) in enumerate({"XE": list(range(n)), "OaXE": order}.items()):
        mean = sum(row[column] for row, column in zip(probability, columns, strict=True)) / n
        axes.plot(
            columns,
            range(n),
            linestyle="none",
            marker="so"[number],  # a dot fits into a square
            markersize=(34.0, 11.0)[number] * min(1.0, 6.5 / n),
            markerfacecolor="none" if name == "XE" else colour(number),
            markeredgecolor=colour(number),
            markeredgewidth=1.8,
            label=f"{name}, probability {mean:.2f}",
        )
    small = min(11.0, 180 / n)  # points: as large as fits
    upright = n * max(len(str(number)) for number in target) > 36
    axes.set_xticks(range(n), map(str, target), rotation=90 if upright else 0, size=small)
    axes.set_yticks(range(n), [str(row + 1) for row in range(n)], size=small)
    axes.set_xlabel("number of the target")
    axes.set_ylabel("position in the answer")
    axes.tick_params(length=0)
    axes.invert_yaxis()
    for handle in legend(axes).get_lines():
        handle.set_markersize(10)
    return figure


def _settings(result: Result) -> str:
    values = [(name, part(result, *names)) for name, names in SETTINGS.items()]
    rows = [[name, f"{value:,}"] for name, value in values if value is not None]
    seed, again = result.get("seed"), ""
    if seed is not None:
        rows.insert(0, ["seed", str(seed)])
        command = f"python -m reproduction demo --seed {escape(str(seed))}"
        again = f"<p>To repeat it: <code>{command}</code></p>"
    if not rows:
        return ""
    return f"<h2>Settings</h2>{table('Of this run', ['setting', 'value'], rows)}{again}"
