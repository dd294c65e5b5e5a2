"""Pictures of what a loss does with one sentence."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from oaxe.losses.arguments import check_tensors
from oaxe.losses.axe import alignment_costs, axe_loss, monotone_alignment
from oaxe.losses.oaxe import oaxe_loss
from oaxe.losses.xe import xe_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# name -> colour, marker, size: large and hollow below, small and full on top
STYLES = {
    "XE": ("#d1495b", "s", 34.0),
    "AXE": ("#edae49", "D", 22.0),
    "OaXE": ("#00798c", "o", 11.0),
}


def plot_alignment(
    logits: Tensor,
    target: Tensor,
    token_name: Callable[[int], str] = str,
    *,
    blank: int | None = None,
    delta: float = 1.0,
    ax: "Axes | None" = None,
) -> "Figure":
    """One sentence's probabilities, with the alignments of XE, AXE and OaXE drawn on them.

    A row is a position and the word that the model predicts there, a column is a word of the
    target; the darker a cell, the likelier that word at that position.

    Args:
        logits: ``(length, vocab)`` of one sentence.
        target: ``(length,)`` token ids.
        token_name: the text of a token id, ``sentencepiece.id_to_piece`` or ``words.__getitem__``.
        blank: id of the blank; needed to draw AXE, left out without it.
        delta: AXE's penalty factor for a skipped target.
        ax: where to draw; a new figure by default.

    Returns:
        The figure; ``figure.savefig("alignment.png")`` writes it.
    """
    check_tensors(logits=logits, target=target)
    figure_class = _figure_class()
    if logits.dim() != 2 or target.dim() != 1 or len(logits) != len(target) or len(target) == 0:
        raise ValueError(
            "plot_alignment takes one sentence: logits (length, vocab) and target (length,), at "
            f"least one word long; got {tuple(logits.shape)} and {tuple(target.shape)}"
        )
    if bool((target < 0).any()) or bool((target >= logits.shape[1]).any()):
        raise ValueError(
            f"target must hold ids 0..{logits.shape[1] - 1}, no padding; got {target.tolist()}"
        )
    logits, target = logits.detach().float().cpu(), target.detach().long().cpu()
    cells = alignment_cells(logits, target, blank=blank, delta=delta)
    columns = target.tolist() + ([] if blank is None else [blank])
    probability = logits.softmax(-1)[:, columns]  # (position, word)
    n_positions, n_columns = probability.shape
    if ax is None:
        ax = figure_class(figsize=(2.6 + 0.75 * n_columns, 1.8 + 0.62 * n_positions)).subplots()
    figure = ax.get_figure()
    assert isinstance(figure, figure_class)

    scale = min(1.0, 9 / n_columns)
    ax.imshow(probability.numpy(), cmap="Greys", vmin=0, vmax=1.6, aspect="auto")
    if n_columns <= 12:
        for position in range(n_positions):
            for column in range(n_columns):
                text = f"{probability[position, column]:.2f}".removeprefix("0")
                ax.text(column - 0.45, position - 0.36, text, va="center", size=7, color="#555")
    for name, (loss, aligned) in cells.items():
        colour, marker, size = STYLES[name]
        ax.plot(
            [column for _, column in aligned],
            [position for position, _ in aligned],
            linestyle="none",
            marker=marker,
            markersize=size * scale,
            markerfacecolor=colour if name == "OaXE" else "none",
            markeredgecolor=colour,
            markeredgewidth=2.2,
            label=f"{name}, loss {loss:.2f}",
        )
    names = [token_name(token) for token in columns]
    ax.set_xticks(range(n_columns), names, rotation=0 if n_columns <= 8 else 60)
    predicted = [token_name(int(token)) for token in logits.argmax(-1)]
    ax.set_yticks(range(n_positions), [f"{i + 1}  {word}" for i, word in enumerate(predicted)])
    ax.set_xlabel("target word" if blank is None else "target word, then the blank")
    ax.set_ylabel("position, and the model's best word for it")
    ax.tick_params(length=0)
    legend = ax.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.01),
        ncols=len(cells),
        frameon=False,
        handletextpad=0.5,
    )
    for handle in legend.get_lines():
        handle.set_markersize(10)
    figure.tight_layout()
    return figure


def _figure_class() -> "type[Figure]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'plot_alignment draws with matplotlib: pip install "oaxe[plot]"'
        ) from error
    return Figure


def alignment_cells(
    logits: Tensor, target: Tensor, *, blank: int | None, delta: float = 1.0
) -> dict[str, tuple[float, list[tuple[int, int]]]]:
    """For each loss its value (summed) and the ``(position, column)`` cells that it sums over.

    Columns are the target's words; with a blank, one more column behind them stands for it.
    """
    batch, words = logits.unsqueeze(0), target.unsqueeze(0)
    length = len(target)
    xe = float(xe_loss(batch, words, reduction="sum"))
    cells = {"XE": (xe, [(i, i) for i in range(length)])}
    if blank is not None:
        _, costs = alignment_costs(batch, words, blank, None, ignore_index=-100)
        best = monotone_alignment(costs, delta)
        aligned = [(position, i) for i, position in enumerate(best.position[0].tolist())]
        aligned += [(position, length) for position in best.blank[0].nonzero().flatten().tolist()]
        axe = float(axe_loss(batch, words, blank=blank, delta=delta, reduction="sum"))
        cells["AXE"] = (axe, aligned)
    oaxe, order = oaxe_loss(batch, words, reduction="sum", return_order=True)
    cells["OaXE"] = (float(oaxe), list(enumerate(order.positions[0].tolist())))
    return cells
