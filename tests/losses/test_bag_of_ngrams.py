"""Bags of n-grams against the enumeration of all that the positions may say."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import oaxe

VOCAB = 3


def ngrams(words: tuple[int, ...], n: int) -> Counter[tuple[int, ...]]:
    return Counter(words[i : i + n] for i in range(len(words) - n + 1))


def by_enumeration(logits: Tensor, target: list[int], n: int) -> Tensor:
    """Half the L1 distance of one sentence, over every n-gram that there can be."""
    probability, total = logits.softmax(-1), logits.sum() * 0
    outputs = list(product(range(VOCAB), repeat=len(logits)))
    weights = [probability[range(len(logits)), list(words)].prod() for words in outputs]
    bags, wanted = [ngrams(words, n) for words in outputs], ngrams(tuple(target), n)
    for gram in product(range(VOCAB), repeat=n):
        of_gram = zip(weights, bags, strict=True)
        expected = torch.stack([weight * bag[gram] for weight, bag in of_gram]).sum()
        total = total + (expected - wanted[gram]).abs() / 2
    return total


def check_equal(ours: Tensor, theirs: Tensor, logits: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-9)
    weight = torch.rand_like(ours)
    one, other = (torch.autograd.grad((x * weight).sum(), logits)[0] for x in (ours, theirs))
    torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("predictions", [1, 2, 4])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_equals_enumeration(n: int, predictions: int, scale: float) -> None:
    logits = scale * torch.randn(3, predictions, VOCAB, dtype=torch.float64)
    logits.requires_grad_()
    target = torch.tensor([[0, 1, 0, 1, 1, 2], [2, 2, 2, 2, 0, 1], [1, 2, 0, 0, 0, 0]])
    target[2, 2:] = -100
    ours = oaxe.bag_of_ngrams_loss(logits, target, n=n, reduction="none")
    words = [[w for w in row.tolist() if w >= 0] for row in target]
    theirs = [by_enumeration(x, y, n) for x, y in zip(logits, words, strict=True)]
    check_equal(ours, torch.stack(theirs), logits)


def test_masked_predictions_and_ignored_words_are_in_no_ngram() -> None:
    """What lies on either side of them are two pieces, each with n-grams of its own."""
    logits = torch.randn(1, 6, VOCAB, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False, True, True, False]])
    target = torch.tensor([[0, 1, -100, 1, 2, 2]])
    ours = oaxe.bag_of_ngrams_loss(logits, target, logit_mask=mask, reduction="none")
    probability = logits[0].softmax(-1)
    common = [
        (probability[0, a] * probability[1, b] + probability[3, a] * probability[4, b]).clamp(max=1)
        for a, b in ((0, 1), (1, 2), (2, 2))
    ]
    check_equal(ours, 2.5 - torch.stack(common).sum(0, keepdim=True), logits)


def test_a_certain_prediction() -> None:
    target = torch.tensor([[0, 1, 0, 1, 2], [2, 2, 2, 0, 0]])
    logits = 1000 * torch.eye(VOCAB)[target]
    for n in range(1, 6):
        assert oaxe.bag_of_ngrams_loss(logits, target, n=n) == 0
    turned = logits[:, [1, 2, 3, 4, 0]]  # 1 0 1 2 0; 2 2 0 0 2
    found = oaxe.bag_of_ngrams_loss(turned, target, reduction="none")
    assert found.tolist() == [1, 1]  # (0, 1), which was there twice; (2, 2)
    assert oaxe.bag_of_ngrams_loss(turned, target, n=1) == 0


def test_ngrams_that_are_expected_too_often_have_no_gradient() -> None:
    logits = 6 * torch.eye(VOCAB)[[0, 0, 0, 1]].unsqueeze(0)
    logits.requires_grad_()
    target = torch.tensor([[0, 0, -100, 2, 2]])
    more, fewer = (torch.tensor([words]) for words in ([0, 0, -100, -100], [2, 2, -100, -100]))
    (of_more,) = torch.autograd.grad(oaxe.bag_of_ngrams_loss(logits, more), logits)
    (of_fewer,) = torch.autograd.grad(oaxe.bag_of_ngrams_loss(logits, fewer), logits)
    (of_both,) = torch.autograd.grad(
        oaxe.bag_of_ngrams_loss(logits, target, reduction="sum"), logits
    )
    assert not of_more.any()
    assert of_fewer.any()
    torch.testing.assert_close(of_both, of_fewer)


def test_reductions() -> None:
    logits = torch.randn(3, 4, VOCAB)
    target = torch.tensor([[0, 1, 2, 0], [1, 1, -100, -100], [2, -100, -100, -100]])
    each = oaxe.bag_of_ngrams_loss(logits, target, reduction="none")
    total = oaxe.bag_of_ngrams_loss(logits, target, reduction="sum")
    torch.testing.assert_close(total, each.sum())
    torch.testing.assert_close(oaxe.bag_of_ngrams_loss(logits, target), total / 4)
    assert oaxe.bag_of_ngrams_loss(logits, target[2:].expand(3, -1)).isinf()  # no n-gram at all


def test_padding_and_batch_mates_change_nothing() -> None:
    logits, target = torch.randn(2, 5, VOCAB), torch.tensor([[0, 1, 2, 0, 1], [1, 2] + [-100] * 3])
    whole = oaxe.bag_of_ngrams_loss(logits, target, logit_mask=target >= 0, reduction="none")
    alone = oaxe.bag_of_ngrams_loss(logits[1:, :2], target[1:, :2], reduction="none")
    torch.testing.assert_close(whole[1:], alone)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 1, 1)])
def test_empty_batches_and_sentences(shape: tuple[int, int, int]) -> None:
    batch, predictions, targets = shape
    logits = torch.randn(batch, predictions, VOCAB, requires_grad=True)
    target = torch.zeros(batch, targets, dtype=torch.long)
    loss = oaxe.bag_of_ngrams_loss(logits, target, n=4, reduction="none")
    assert loss.tolist() == [0.0] * batch
    assert torch.autograd.grad(loss.sum(), logits)[0].shape == logits.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "at least one word, got n = 0"),
        ({"logit_mask": torch.ones(1, 3)}, "logit_mask must be bool"),
        ({"reduction": "max"}, "reduction must be"),
    ],
)
def test_rejects_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.bag_of_ngrams_loss(torch.zeros(1, 4, 5), torch.tensor([[0, 1]]), **options)
