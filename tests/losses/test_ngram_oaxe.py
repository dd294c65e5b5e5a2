"""OaXE of n-grams against all orders of the windows, and its limits: OaXE and cross entropy."""

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

import oaxe

VOCAB = 6


def brute_force(logits: Tensor, words: list[int], n: int) -> Tensor:
    """The least of all orders of the windows; a position in c windows counts 1 / c in each."""
    cost, n = -logits.log_softmax(-1), min(n, len(words))
    windows = range(len(words) - n + 1)
    covered = [i + k for i in windows for k in range(n)]
    totals = []
    for order in permutations(windows):
        terms = [
            cost[i + k, words[j + k]] / covered.count(i + k)
            for i, j in zip(windows, order, strict=True)
            for k in range(n)
        ]
        totals.append(torch.stack(terms).sum())
    return torch.stack(totals).min()


def check_equal(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    weight = torch.rand_like(ours)
    for one, other in zip(
        torch.autograd.grad((ours * weight).sum(), inputs, retain_graph=True),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_all_orders_of_windows(n: int) -> None:
    target = torch.tensor(
        [[0, 1, 2, 3, 4, 5], [1, 1, 2, 1, -100, -100], [-100, 4, 0, -100, 3, 0], [5] + [-100] * 5]
    )
    logits = torch.randn(4, 6, VOCAB, dtype=torch.float64, requires_grad=True)
    ours = oaxe.ngram_oaxe_loss(logits, target, n=n, reduction="none").sum(1)
    theirs = torch.stack(
        [brute_force(x[y >= 0], y[y >= 0].tolist(), n) for x, y in zip(logits, target, strict=True)]
    )
    check_equal(ours, theirs, logits)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"truncation": 0.1},
    {"truncation": 0.1, "label_smoothing": 0.1},
]


def example() -> tuple[Tensor, Tensor]:
    logits = torch.randn(5, 7, VOCAB, dtype=torch.float64, requires_grad=True)
    target = torch.randint(VOCAB, (5, 7)).masked_fill(torch.rand(5, 7) < 0.3, -100)
    target[4] = -100
    return logits, target


@pytest.mark.parametrize("options", OPTIONS)
def test_of_one_word_it_is_oaxe(options: dict[str, Any]) -> None:
    logits, target = example()
    for reduction in ("none", "sum", "mean"):
        given: Any = {"reduction": reduction, **options}
        ours = oaxe.ngram_oaxe_loss(logits, target, n=1, **given)
        check_equal(ours, oaxe.oaxe_loss(logits, target, **given), logits)


@pytest.mark.parametrize("options", OPTIONS[:2])
@pytest.mark.parametrize("n", [7, 100])
def test_of_all_words_it_is_cross_entropy(n: int, options: dict[str, Any]) -> None:
    logits, target = example()
    ours = oaxe.ngram_oaxe_loss(logits, target, n=n, reduction="none", **options)
    check_equal(ours, oaxe.xe_loss(logits, target, reduction="none", **options), logits)


def test_truncation_drops_words_of_windows() -> None:
    """A position is in two windows, of which one puts a word there that is too improbable."""
    logits = torch.eye(4)[[2, 3, 0, 1]].unsqueeze(0) * 9
    target = torch.tensor([[0, 1, 2, 3]])
    whole = oaxe.ngram_oaxe_loss(logits, target, reduction="none")
    kept = oaxe.ngram_oaxe_loss(logits, target, truncation=0.5, reduction="none")
    assert [loss > 1 for loss in whole[0].tolist()] == [False, True, True, False]
    assert (kept < 0.01).all()
    assert (kept > 0).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 1)])
def test_empty_batches_and_sentences(shape: tuple[int, int]) -> None:
    logits = torch.randn(*shape, VOCAB, requires_grad=True)
    target = torch.zeros(shape, dtype=torch.long)
    ours = oaxe.ngram_oaxe_loss(logits, target, reduction="none")
    torch.testing.assert_close(ours, oaxe.xe_loss(logits, target, reduction="none"))
    assert torch.autograd.grad(ours.sum(), logits)[0].shape == logits.shape


def test_rejects_wrong_options() -> None:
    logits, target = torch.zeros(1, 2, VOCAB), torch.tensor([[0, 1]])
    with pytest.raises(ValueError, match="at least one word, got n = 0"):
        oaxe.ngram_oaxe_loss(logits, target, n=0)
    with pytest.raises(ValueError, match="truncation must be"):
        oaxe.ngram_oaxe_loss(logits, target, truncation=1)


def test_smoothed_from_hidden_states_it_is_never_below_zero() -> None:
    """With a vocabulary of one word all losses are 0, but for rounding."""
    for seed in range(50):
        torch.manual_seed(seed)
        hidden, embedding = torch.randn(8, 1, 5), torch.randn(1, 5)
        loss = oaxe.linear_ngram_oaxe_loss(
            hidden, embedding, torch.zeros(8, 1, dtype=torch.long), label_smoothing=0.1
        )
        assert 0 <= loss < 1e-6
