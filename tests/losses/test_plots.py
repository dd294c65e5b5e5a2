from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

import oaxe
from oaxe.losses.plots import alignment_cells

WORDS = ["I", "ate", "pizza", "this", "afternoon", "ε"]
BLANK = WORDS.index("ε")


def pizza() -> tuple[Tensor, Tensor]:
    """A model that predicts "this afternoon I ate pizza" where the target has another order.

    Returns logits ``(5, vocab)`` and target ``(5,)``.
    """
    target = ids("I ate pizza this afternoon")
    predicted = ids("this afternoon I ate pizza")
    probability = torch.full((5, len(WORDS)), 0.04)
    probability[torch.arange(5), target] = 0.10
    probability[:, BLANK] = 0.16
    probability[torch.arange(5), predicted] = 0.0
    probability[torch.arange(5), predicted] = 1 - probability.sum(1)
    return probability.log(), target


def ids(sentence: str) -> Tensor:
    return torch.tensor([WORDS.index(word) for word in sentence.split()])


def test_alignments_of_the_example_in_the_paper() -> None:
    logits, target = pizza()
    cells = alignment_cells(logits, target, blank=BLANK)
    assert cells["XE"][1] == [(i, i) for i in range(5)]
    # "this afternoon I ate pizza": each position takes its own word
    order = [int(target[column]) for _, column in cells["OaXE"][1]]
    assert order == ids("this afternoon I ate pizza").tolist()
    # monotone: "I ate pizza" is recovered, "this afternoon" is not
    assert {(2, 0), (3, 1), (4, 2)} <= set(cells["AXE"][1])
    assert {(0, 5), (1, 5)} <= set(cells["AXE"][1])  # positions 1 and 2 are left blank
    assert cells["OaXE"][0] < cells["AXE"][0] < cells["XE"][0]


@pytest.mark.parametrize("blank", [None, BLANK])
def test_picture_has_names_and_losses(tmp_path: Path, blank: int | None) -> None:
    logits, target = pizza()
    figure = oaxe.plot_alignment(logits, target, WORDS.__getitem__, blank=blank)
    assert isinstance(figure, Figure)
    axes = figure.axes[0]
    columns = [label.get_text() for label in axes.get_xticklabels()]
    assert columns == ["I", "ate", "pizza", "this", "afternoon"] + (["ε"] if blank else [])
    legend = axes.get_legend()
    assert legend is not None
    names = [text.get_text().split(",")[0] for text in legend.get_texts()]
    assert names == (["XE", "AXE", "OaXE"] if blank else ["XE", "OaXE"])
    figure.savefig(tmp_path / "alignment.png")
    assert (tmp_path / "alignment.png").stat().st_size > 10_000


def test_draws_on_given_axes_and_long_sentences() -> None:
    figure = Figure()
    axes = figure.subplots()
    drawn = oaxe.plot_alignment(torch.randn(30, 50), torch.randint(50, (30,)), ax=axes)
    assert drawn is figure


def test_rejects_a_batch() -> None:
    with pytest.raises(ValueError, match="one sentence"):
        oaxe.plot_alignment(torch.zeros(1, 3, 4), torch.zeros(1, 3, dtype=torch.long))


def test_rejects_padding() -> None:
    with pytest.raises(ValueError, match="no padding"):
        oaxe.plot_alignment(torch.zeros(2, 4), torch.tensor([1, -100]))
