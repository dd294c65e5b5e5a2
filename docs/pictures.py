"""python docs/pictures.py draws the pictures of kernels.md into docs/images.

What can be computed is computed: matches, masks and probabilities are those of the package.
"""

from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

import oaxe
from oaxe.evaluation.page import COLOURS
from oaxe.losses.ctc import CTCLattice
from oaxe.losses.lattice import posteriors, rests_of_paths, sum_of_paths
from oaxe.model.spans import spans_between

FOLDER = Path(__file__).parent / "images"
RED, BLUE, YELLOW, PURPLE, GREEN, GREY = COLOURS
PALE = "#e4e8ec"


def blank(width: float, height: float, *, across: float, down: float) -> tuple[Figure, Axes]:
    """An empty picture whose units are square; the origin is at the top left."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set(xlim=(0, across), ylim=(down, 0), aspect="equal")
    axes.axis("off")
    return figure, axes


def box(axes: Axes, x: float, y: float, w: float, h: float, colour: str, text: str = "") -> None:
    axes.add_patch(Rectangle((x, y), w, h, facecolor=colour, edgecolor="white", linewidth=0.8))
    if text:
        light = colour in (PALE, "white", YELLOW)
        axes.text(
            x + w / 2,
            y + h / 2,
            text,
            ha="center",
            va="center",
            size=9.5,
            color="black" if light else "white",
        )


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str = "black",
    bend: float = 0.0,
    width: float = 1.2,
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            color=colour,
            linewidth=width,
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=3,
            shrinkB=3,
        )
    )


def note(axes: Axes, x: float, y: float, text: str, **how: object) -> None:
    axes.text(x, y, text, **({"ha": "left", "va": "center", "size": 10} | how))


def costs_and_match(axes: Axes, x: float, y: float, cost: Tensor, unit: float) -> None:
    match = oaxe.linear_assignment(cost.unsqueeze(0))[0].tolist()
    n = len(match)
    axes.imshow(
        cost.numpy(),
        cmap="Greys",
        vmin=-0.2,
        vmax=2.2,
        extent=(x, x + n * unit, y + n * unit, y),
    )
    for row, column in enumerate(match):
        centre = x + (column + 0.5) * unit, y + (row + 0.5) * unit
        axes.plot(*centre, "o", color=BLUE, markersize=3.4)


def matching() -> Figure:
    """A warp for each problem, and one scan of a row."""
    generator = torch.Generator().manual_seed(1)
    figure, axes = blank(8.2, 4.6, across=82, down=46)
    note(axes, 1, 2, "a batch of problems", weight="bold")
    x = 1.0
    for number, n in enumerate((5, 8, 4, 7, 10)):
        cost = torch.rand(n, n, generator=generator)
        costs_and_match(axes, x, 14 - n, cost, 1.0)
        box(axes, x, 16, n, 2.6, RED)
        note(axes, x + n / 2, 20.4, f"warp {number}", ha="center", size=9)
        x += n + 3.2
    note(axes, 52, 7.5, "dots: the columns found\nfor the rows, no two the same", size=9.5)
    note(axes, 52, 17.3, "32 threads each; no warp\nwaits for another one", size=9.5)

    note(axes, 1, 25, "one scan, inside a warp", weight="bold")
    lanes, least, wide = 32, 11, 1.3
    rows = (("costs of the row, from the cache", PALE), ("nearest so far, in registers", BLUE))
    for number, (text, colour) in enumerate(rows):
        for lane in range(lanes):
            top = 27.2 + 4 * number
            box(axes, 1 + wide * lane, top, wide, 2.6, colour)
        note(axes, 45, 28.5 + 4 * number, text, size=9.5)
    for lane in range(lanes):
        centre = 1 + wide * (lane + 0.5)
        arrow(axes, (centre, 33.6), (centre, 35.8), GREY, width=0.5)
    box(axes, 1, 36, wide * lanes, 2.6, RED, "the least of all 32 threads: one instruction")
    note(axes, 45, 37.3, "which column is nearest?", size=9.5)
    centre = 1 + wide * (least + 0.5)
    box(axes, centre - wide / 2, 40, wide, 2.6, GREEN)
    arrow(axes, (centre, 38.4), (centre, 40.2))
    note(
        axes,
        45,
        41.3,
        "free: the path ends here, and the row is matched\ntaken: go on with the row that has it",
        size=9.5,
    )
    return figure


def linear() -> Figure:
    """A chunk of the logits at a time."""
    figure, axes = blank(8.2, 4.5, across=82, down=45)
    axes.add_patch(Rectangle((24, 8), 32, 33, fill=False, edgecolor=GREY, linestyle=(0, (4, 3))))
    note(axes, 40, 2.2, "vocabulary: 32,000", ha="center")
    box(axes, 24, 3.6, 32, 3, PURPLE, "embedding (32,000 x 512)")
    box(axes, 8, 8, 12, 33, PALE)
    note(axes, 6.4, 24.5, "131,072 tokens", rotation=90, ha="center")
    note(axes, 14, 43, "hidden states", ha="center")
    box(axes, 8, 16, 12, 4.2, BLUE, "a chunk")
    box(axes, 24, 16, 32, 4.2, RED, "its logits: one matrix product")
    arrow(axes, (20, 18.1), (24, 18.1))
    note(
        axes,
        40,
        30,
        "the others are not there:\n8.4 GB that are never stored",
        ha="center",
        color="#555",
    )
    steps = (
        "row by row, in place:\nlog-sum-exp, loss, and\nthe gradient over the logits",
        "x embedding: gradient\nof the hidden states",
        "x hidden states, added up:\ngradient of the embedding",
    )
    for number, text in enumerate(steps):
        top = 10 + 9 * number
        note(axes, 61, top + 2.4, f"{number + 1}", weight="bold", color=RED, size=12)
        note(axes, 64, top + 2.4, text, size=9.5)
    arrow(axes, (56, 18.1), (60.4, 13.4))
    note(axes, 61, 38.5, "then the next chunk,\nin the same memory", size=9.5)
    return figure


LENGTHS = (9, 4, 6, 3, 7, 5)


def packed() -> Figure:
    """A padded batch, the same one packed, and which token sees which."""
    figure, axes = blank(8.2, 4.3, across=82, down=43)
    unit, width = 2.4, max(LENGTHS)
    note(axes, 1, 2, "padded: every row as long as the longest", weight="bold")
    for row, length in enumerate(LENGTHS):
        for place in range(width):
            colour = COLOURS[row] if place < length else PALE
            box(axes, 1 + unit * place, 4 + unit * row, unit, unit, colour)
    share = 1 - sum(LENGTHS) / (width * len(LENGTHS))
    note(axes, 1, 21, f"{share:.0%} of it is padding", size=9.5)
    note(axes, 1, 26.5, "packed: one behind the other", weight="bold")
    place, room = 0, 36
    for row, length in enumerate(LENGTHS):
        for _ in range(length):
            box(axes, 1 + 1.1 * place, 28.5, 1.1, unit, COLOURS[row])
            place += 1
    for empty in range(place, room):
        box(axes, 1 + 1.1 * empty, 28.5, 1.1, unit, PALE)
    note(
        axes,
        1,
        33.2,
        "the same room for every batch of the run:\none shape, so one CUDA graph",
        size=9.5,
    )
    lengths = torch.tensor(LENGTHS)
    mask = spans_between(lengths, lengths, room, room).mask()
    note(axes, 48, 2, "which tokens see which", weight="bold")
    seen = np.full((room, room, 3), matplotlib.colors.to_rgb(PALE))
    number = torch.repeat_interleave(torch.arange(len(LENGTHS)), lengths).tolist()
    for query, key in mask.nonzero().tolist():
        seen[query, key] = matplotlib.colors.to_rgb(COLOURS[number[query]])
    axes.imshow(seen, extent=(48, 81, 37, 4), interpolation="nearest")
    for tile in range(1, 4):
        axes.plot([48, 81], [4 + tile * 33 / 4] * 2, color="white", linewidth=1.6)
    note(
        axes,
        48,
        40,
        "a program takes a stretch of rows,\nand only the columns that they see",
        size=9.5,
    )
    return figure


def ctc_probabilities(positions: int) -> Tensor:
    """(positions, states): how probable it is that an alignment of the target is in a state."""
    generator = torch.Generator().manual_seed(5)
    emissions = (1.3 * torch.randn(1, positions, 4, generator=generator)).log_softmax(-1)
    sizes = torch.tensor([positions]), torch.tensor([3])
    ctc = CTCLattice(emissions, torch.tensor([[0, 1, 2]]), *sizes)
    total, beginnings = sum_of_paths(ctc)
    return posteriors(ctc, beginnings, rests_of_paths(ctc), total)[0]


def lattice() -> Figure:
    """CTC's states by positions, and the words of a target by vertices of a graph."""
    figure, axes = blank(8.2, 4.7, across=82, down=47)
    positions, names = 8, ["∅", "I", "∅", "ate", "∅", "pizza", "∅"]
    probability = ctc_probabilities(positions)
    note(axes, 1, 2, "CTC: a step is a position", weight="bold")

    def at(position: int, state: int) -> tuple[float, float]:
        return 9.5 + 3.9 * position, 7 + 4.6 * state

    for position in range(positions - 1):
        for state in range(7):
            for by in (0, 1, 2):
                after = state + by
                skips = by == 2 and (state % 2 == 0 or after > 6)
                if after > 6 or skips:
                    continue
                share = min(probability[position, state], probability[position + 1, after])
                if share > 0.02:
                    arrow(
                        axes,
                        at(position, state),
                        at(position + 1, after),
                        GREY,
                        width=0.4 + 1.6 * share,
                    )
    for state, name in enumerate(names):
        note(axes, 6.5, 7 + 4.6 * state, name, ha="right", size=9.5)
        for position in range(positions):
            share = float(probability[position, state])
            axes.plot(
                *at(position, state), "o", markersize=11, color="white", markeredgecolor="#bbb"
            )
            axes.plot(*at(position, state), "o", markersize=11, color=BLUE, alpha=share)
    arrow(axes, (9.5, 39.2), (37, 39.2))
    note(axes, 23, 41.4, "positions: one after the other", ha="center", size=9.5)
    note(axes, 1, 45, "all states of a position at once, in registers; darker: likelier", size=9.5)

    note(axes, 48, 2, "DAG: a step is a word of the target", weight="bold")
    words, vertices = ["I", "ate", "pizza"], 8
    for step, word in enumerate(words):
        top = 8 + 12.5 * step
        note(axes, 46.5, top, word, ha="right", size=9.5)
        for vertex in range(vertices):
            left = 49 + 4.4 * vertex
            reached = (vertex == 0) if step == 0 else vertex >= step
            colour = BLUE if reached else "white"
            if step == 2 and vertex != vertices - 1:
                colour = PALE if reached else "white"
            axes.plot(left, top, "o", markersize=11, color=colour, markeredgecolor="#bbb")
    for vertex in range(1, vertices):
        arrow(axes, (49, 8), (49 + 4.4 * vertex, 20.5), GREY, width=0.8)
    for vertex in range(1, vertices - 1):
        arrow(axes, (49 + 4.4 * vertex, 20.5), (49 + 4.4 * (vertices - 1), 33), RED, width=1.0)
    arrow(axes, (49, 39.2), (80, 39.2))
    note(axes, 64.5, 41.4, "vertices: all at once", ha="center", size=9.5)
    note(axes, 48, 45, "each vertex adds up all ways from earlier ones", size=9.5)
    return figure


def update() -> Figure:
    """What Python and the GPU do in the first updates."""
    figure, axes = blank(8.2, 3.9, across=82, down=39)
    note(axes, 8.5, 6, "Python", ha="right", weight="bold")
    note(axes, 8.5, 12, "GPU", ha="right", weight="bold")
    x = 10.0
    note(axes, x, 2, "update 1: computed", size=9.5)
    for kernel in range(12):
        box(axes, x + 2.2 * kernel, 4.8, 2.0, 2.4, PURPLE)
        box(axes, x + 2.2 * kernel + 0.9, 10.8, 0.9, 2.4, BLUE)
    x += 28.5
    note(axes, x, 2, "update 2: recorded", size=9.5)
    for kernel in range(8):
        box(axes, x + 2.2 * kernel, 4.8, 2.0, 2.4, PURPLE)
    for kernel in range(9):
        box(axes, x + 17.6 + 0.95 * kernel, 10.8, 0.9, 2.4, BLUE)
    x += 28
    note(axes, x, 2, "3, 4, …: replayed", size=9.5)
    for start in (x, x + 8):
        box(axes, start, 4.8, 0.7, 2.4, PURPLE)
        for kernel in range(8):
            box(axes, start + 0.3 + 0.95 * kernel, 10.8, 0.9, 2.4, BLUE)
    note(axes, 10, 15.6, "the GPU waits for Python between kernels", size=9.5, color="#555")
    note(axes, 66.5, 15.6, "it waits no more", size=9.5, color="#555")

    note(axes, 1, 20.5, "one update from the third on", weight="bold")
    parts = (
        (1, 13, PALE, "batch and\nlearning rate\ncopied in"),
        (16, 27, BLUE, "graph 1, for each batch:\nforward and backward pass,\ngradients added up"),
        (45, 11, YELLOW, "several GPUs:\nsum of the\ngradients"),
        (58, 23, RED, "graph 2: clipping, AdamW,\naverages"),
    )
    for left, wide, colour, text in parts:
        box(axes, left, 23, wide, 9, colour, text)
    for left in (14, 43, 56):
        arrow(axes, (left - 0.4, 27.5), (left + 2.4, 27.5))
    note(
        axes,
        1,
        36,
        "weights, gradients and inputs stay where they are in memory: a graph reads "
        "and "
        "writes the same addresses each time",
        size=9.5,
    )
    return figure


if __name__ == "__main__":
    matplotlib.rcParams |= {"svg.hashsalt": "oaxe", "font.family": "DejaVu Sans"}
    for draw in (matching, linear, packed, lattice, update):
        path = FOLDER / f"kernels-{draw.__name__}.svg"
        draw().savefig(path, metadata={"Date": None}, facecolor="white")
        print(path)
