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
    examples,
    interpretation,
    marks,
    score_table,
    tests,
    verdict,
)
from reproduction.synthetic.scores import NONE
from reproduction.synthetic.task import ORDERINGS, PROBABILITIES, reorder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Several right orders, one answer: XE against OaXE"
STYLE = """
.repeated { color: var(--red); font-weight: 700; text-decoration: underline double }
.misplaced { color: var(--amber); text-decoration: underline dotted }
.numbers td { padding: .3rem; min-width: 1.2em }
"""
TASK = (
    "The model reads a row of numbers and writes the same numbers in any one of five orders; each "
    "of them is right. For every pair of the training data the order was drawn at random, so the "
    "model cannot know which one is asked for, just as a translator cannot know which of several "
    "good word orders its reference has. It predicts all numbers in one pass, so where it does not "
    "settle on one order, it repeats some numbers and omits others."
)
LOSSES = (
    "Cross entropy (XE) trains on the order that was drawn, number by number. Order-agnostic cross "
    "entropy (OaXE) continues from a model that began with XE, and trains on the order that this "
    "model already finds likeliest."
)
MEASURED = (
    "Exact match: answers that are right from the first number to the last, in any of the orders. "
    "Repetition: numbers that the output has more often than the source. Mean confidence: the "
    "probability that the model gives to its output numbers."
)
SETTINGS = {
    "numbers": "different numbers",
    "shortest": "shortest sequence",
    "longest": "longest sequence",
    "train": "training pairs",
    "valid": "validation pairs",
    "test": "test pairs",
    "updates": "updates of XE, and of XE with OaXE",
    "xe_updates": "updates of XE before OaXE",
}


def write_page(result: Result, path: Path) -> None:
    sections = [
        paragraph(interpretation(result), "lead" if result["finished"] else "note"),
        "<h2>The task</h2>" + paragraph(TASK) + _orders(),
        "<h2>The result</h2>" + paragraph(LOSSES) + table(*score_table(result)),
        paragraph(MEASURED, "soft"),
        _examples(result),
        _curves(result),
        _chosen(result),
        _matrix(result),
        _settings(result),
    ]
    write_whole(path, page(TITLE, "\n".join(filter(None, sections)), STYLE))


def _orders() -> str:
    source = [1, 3, 10, 7, 9, 2]
    answers = [_row(name, reorder(source, mode)) for mode, name in enumerate(ORDERINGS)]
    return _numbers("A source and its right answers", [_row("source", source), *answers])


def _examples(result: Result) -> str:
    shown = []
    for number, (source, outputs) in enumerate(examples(result), 1):
        rows = [_row(name, output, marks(output, source)) for name, output in outputs.items()]
        shown.append(_numbers(f"Example {number}", [_row("source", source), *rows]))
        verdicts = [f"{name} {verdict(output, source)}" for name, output in outputs.items()]
        shown.append(paragraph(". ".join(verdicts) + ".", "soft"))  # which wraps on a phone
    explained = " ".join(
        f'<span class="{mark}">{mark}</span>: {meaning}.' for mark, meaning in LEGEND.items()
    )
    return f'<h2>Examples</h2><p class="soft">{explained}</p>' + "".join(shown) if shown else ""


def _numbers(name: str, rows: list[str]) -> str:
    return scroll(name, f'<tbody class="numbers">{"".join(rows)}</tbody>')


def _row(name: str, numbers: list[int], found: Sequence[str] = ()) -> str:
    cells = "".join(
        f'<td><span class="{mark}" title="{mark}">{escape(str(number))}</span></td>'
        for mark, number in zip(found or ["right"] * len(numbers), numbers, strict=True)
    )
    return f'<tr><th scope="row">{name}</th>{cells}</tr>'


def _curves(result: Result) -> str:
    xe, oaxe = ([(p["step"], [p["exact_match"]]) for p in result["curves"][key]] for key in NAMES)
    if not xe:
        return ""
    switch = result["recipe"]["xe_updates"]
    # OaXE branches off from what XE had reached by then.
    after = [point for point in oaxe if point[0] > switch]
    oaxe = [point for point in oaxe if point[0] <= switch][-1:] + after if after else []
    lines = [Line("XE", xe), Line("XE, then OaXE", oaxe)]
    figure, axes = line_chart(lines, "updates", "exact match, %", spread=False)
    axes.set_ylim(*PERCENT)
    axes.axvline(switch, color="black", linewidth=1, linestyle=":")
    axes.annotate("switch", (switch, 50), (-6, 0), textcoords="offset points", ha="right", size=11)
    return (
        "<h2>Learning curves</h2>"
        + svg(figure, "Exact match over updates, of XE and of XE followed by OaXE")
        + paragraph("Exact match on validation data during training.", "soft")
    )


def _chosen(result: Result) -> str:
    outputs = {NAMES[k]: tests(result, k)["chosen"] for k in NAMES if tests(result, k)}
    if not outputs:
        return ""
    drawn = dict(zip(ORDERINGS, PROBABILITIES[len(ORDERINGS)], strict=True))
    rows = [
        [
            "none of them" if ordering == NONE else ordering,
            f"{100 * drawn[ordering]:.0f} %" if ordering in drawn else "-",
            *(
                f"{100 * one[ordering] / max(sum(one.values()), 1):.1f} %"
                for one in outputs.values()
            ),
        ]
        for ordering in (*ORDERINGS, NONE)
    ]
    head = ["order", "training data", *outputs]
    caption = "Share of the answers; the training data for comparison"
    explained = paragraph(
        "The training data have the orders as often as those of the paper (its appendix): some "
        "more often than others.",
        "soft",
    )
    return "<h2>Which order they choose</h2>" + table(caption, head, rows) + explained


def _matrix(result: Result) -> str:
    if (matrix := result["matrix"]) is None:
        return ""
    found = [matrix["target"][column] for column in matrix["order"]]
    names = [n for mode, n in enumerate(ORDERINGS) if reorder(matrix["source"], mode) == found]
    return (
        "<h2>One sequence at the switch</h2>"
        + svg(
            _draw_matrix(matrix["target"], matrix["probability"], matrix["order"]),
            "Cost matrix of one sequence, with the orders that XE and OaXE train on",
        )
        + paragraph(
            "The first validation pair for which OaXE finds another right order than the one that "
            "was drawn, if there is one. A row is a position of the answer, a column a number of "
            f"the target (drawn: {matrix['ordering']}); the darker a cell, the likelier the model "
            "finds that number at that position. XE (squares) trains on the target as it was "
            "drawn. OaXE (dots) finds the most likely order in which each number is used once: "
            f"{' '.join(map(str, found))}, which is "
            + (f"{names[0]}. " if names else "not quite one of the right orders. ")
            + "Beside each name stands the mean probability of its cells.",
            "soft",
        )
    )


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
            markerfacecolor=colour(number) if number else "none",
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
    rows = [["seed", str(result["seed"])]]
    rows += [[label, f"{result['recipe'][key]:,}"] for key, label in SETTINGS.items()]
    rows.append(["seconds", f"{result['seconds']:,}"])
    command = f"python -m reproduction demo --seed {escape(str(result['seed']))}"
    shown = table("Of this run", ["setting", "value"], rows)
    return f"<h2>Settings</h2>{shown}<p>To repeat it: <code>{command}</code></p>"
