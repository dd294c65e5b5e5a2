"""Several references: each loss against torch's CTC, and their selection by its formula."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.references import linear_reference_losses, selected_losses
from tests.losses.test_ctc import BLANK, VOCAB, one_sentence

IGNORED = -100
REFERENCES = torch.tensor(
    [
        [[0, 1, IGNORED], [3, 3, 1], [1, IGNORED, IGNORED]],
        [[1, IGNORED, 0], [IGNORED, IGNORED, IGNORED], [3, 3, 3]],  # none; 5 of 4 positions
    ]
)
MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


def example() -> tuple[Tensor, Tensor]:
    hidden = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, 5, dtype=torch.float64, requires_grad=True)
    return hidden, weight


def expected_losses(hidden: Tensor, weight: Tensor) -> list[list[Tensor]]:
    logits = F.linear(hidden, weight)
    return [
        [one_sentence(logits[b, MASK[b]], words[words != IGNORED]) for words in REFERENCES[b]]
        for b in range(2)
    ]


def test_each_loss_is_that_of_torch() -> None:
    hidden, weight = example()
    found = linear_reference_losses(hidden, weight, REFERENCES, blank=BLANK, logit_mask=MASK)
    expected = expected_losses(hidden, weight)
    assert found[1, 1:].tolist() == [math.inf] * 2
    ours = torch.cat([found[0], found[1, :1]])
    theirs = torch.stack([*expected[0], expected[1][0]])
    torch.testing.assert_close(ours, theirs)
    factors = torch.rand(4, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((ours * factors).sum(), [hidden, weight]),
        torch.autograd.grad((theirs * factors).sum(), [hidden, weight]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("share", [0.0, 0.2, 2 / 3, 0.9, 1.0])
def test_selection_by_its_formula(share: float) -> None:
    hidden, weight = example()
    losses = linear_reference_losses(hidden, weight, REFERENCES, blank=BLANK, logit_mask=MASK)
    found = selected_losses(losses, torch.tensor(share, dtype=torch.float64))
    of_first, of_second = expected_losses(hidden, weight)
    three = torch.stack(of_first)
    mean, any_of_them, easiest = three.mean(), -(-three).exp().sum().log(), three.min()
    if share <= 2 / 3:
        expected = mean + (any_of_them - mean) * share * 3 / 2
    else:
        expected = any_of_them + (easiest - any_of_them) * (share - 2 / 3) * 3
    torch.testing.assert_close(found, torch.stack([expected, of_second[0]]))
    gradients = (torch.autograd.grad(x, hidden)[0] for x in (found.sum(), expected + of_second[0]))
    torch.testing.assert_close(*gradients)


def test_a_sentence_without_a_reference_that_fits_teaches_nothing() -> None:
    losses = torch.tensor([[torch.inf, torch.inf], [1.0, torch.inf]], requires_grad=True)
    for share in (0.0, 0.5, 1.0):
        found = selected_losses(losses, torch.tensor(share))
        assert found.tolist() == [0, 1]
        (gradient,) = torch.autograd.grad(found.sum(), losses)
        assert gradient.tolist() == [[0, 0], [1, 0]]


def test_a_loss_that_is_not_a_number_is_seen() -> None:
    losses = torch.tensor([[torch.nan, torch.inf], [torch.nan, 1.0]])
    for share in (0.0, 0.5, 1.0):
        assert selected_losses(losses, torch.tensor(share)).isnan().all()
