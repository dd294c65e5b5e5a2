"""Criteria against slow references that share no code with them: value, gradient, statistics."""

import dataclasses
from itertools import permutations
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.criteria import CRITERIA
from oaxe.criteria.axe import AXE
from oaxe.criteria.bag_of_ngrams import BagOfNgrams
from oaxe.criteria.ngram_oaxe import NgramOaXE
from oaxe.criteria.oaxe import OaXE
from oaxe.criteria.xe import XE
from oaxe.model.masking import IGNORED, Masking
from oaxe.text.symbols import BLANK
from tests.oracles import axe_by_brute_force, oaxe_by_brute_force

VOCAB, DIM = 15, 8


def layer_and_target() -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, output embedding, and targets of 4, 2, 0 and 3 words, one inside ignored."""
    hidden = torch.randn(4, 5, DIM, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, DIM, dtype=torch.float64, requires_grad=True)
    # distinct words: with equal ones, the best order is not the only one
    target = torch.stack([7 + torch.randperm(VOCAB - 7)[:5] for _ in range(4)])
    for row, n in enumerate((4, 2, 0, 5)):
        target[row, n:] = IGNORED
    target[3, 1] = target[3, 3] = IGNORED
    return hidden, weight, target


def plain(criterion: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    if isinstance(criterion, XE):
        return F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing, reduction="sum"
        )
    if isinstance(criterion, OaXE):
        return oaxe_by_brute_force(logits, target, IGNORED, smoothing, criterion.truncation)
    if isinstance(criterion, BagOfNgrams):
        missed = ngrams_by_definition(logits.softmax(-1), target, criterion.n)
        return criterion.xe * plain(XE(), logits, target, smoothing) + (1 - criterion.xe) * missed
    assert isinstance(criterion, AXE)
    total = logits.new_zeros(())
    for sentence, words in zip(logits, target, strict=True):
        kept = words != IGNORED
        if kept.any():
            alone = axe_by_brute_force(sentence[kept], words[kept], BLANK, criterion.delta)
            total = total + alone
    return total


def ngrams_by_definition(probability: Tensor, target: Tensor, n: int) -> Tensor:
    """One n-gram after the other; words of a sentence are distinct, so that each counts once."""
    total = probability.new_zeros(())
    for rows, words in zip(probability, target, strict=True):
        starts = [i for i in range(len(words) - n + 1) if (words[i : i + n] != IGNORED).all()]
        for gram in (words[i : i + n] for i in starts):
            expected = sum(rows[range(t, t + n), gram].prod() for t in starts)
            total = total + 1 - torch.as_tensor(expected).clamp(max=1)
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "criterion",
    [
        XE(),
        AXE(),
        AXE(delta=0.3),
        AXE(delta=5.0),
        OaXE(),
        OaXE(0.05),
        OaXE(truncation=0.9),
        BagOfNgrams(),
        BagOfNgrams(n=1, xe=0.0),
        BagOfNgrams(n=3, xe=0.5),
    ],
    ids=str,
)
def test_equals_the_reference(criterion: Any, smoothing: float) -> None:
    hidden, weight, target = layer_and_target()
    loss, _ = criterion(hidden, weight, target, smoothing)
    assert loss.shape == ()
    logits = F.linear(hidden, weight)
    expected = plain(criterion, logits, target, smoothing) + 0 * logits.sum()
    torch.testing.assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(x, (hidden, weight)) for x in (loss, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_statistics_of_oaxe() -> None:
    """Which words are truncated and how far all of them move, by trying every order."""
    hidden, weight, target = layer_and_target()
    truncation = 0.05
    _, statistics = OaXE(truncation)(hidden, weight, target, 0.0)
    probabilities = F.linear(hidden, weight).detach().softmax(-1)
    truncated = moved = n_words = 0
    for rows, words in zip(probabilities, target, strict=True):
        positions = [i for i, word in enumerate(words.tolist()) if word != IGNORED]
        best = max(
            permutations(positions),
            key=lambda order: sum(
                float(rows[p, words[q]].log()) for p, q in zip(positions, order, strict=True)
            ),
        )
        pairs = list(zip(positions, best, strict=True))
        truncated += sum(float(rows[p, words[q]]) <= truncation for p, q in pairs)
        moved += sum(abs(p - q) for p, q in pairs)
        n_words += len(positions)
    found = {name: [number.item() for number in pair] for name, pair in statistics.items()}
    assert found == {"truncated": [truncated, n_words], "displacement": [moved, n_words]}
    assert 0 < truncated < n_words
    assert moved > 0


@pytest.mark.parametrize("truncation", [0.0, 0.05])
def test_oaxe_of_ngrams(truncation: float) -> None:
    hidden, weight, target = layer_and_target()
    given = hidden, weight, target, 0.1
    loss, statistics = NgramOaXE(n=1, truncation=truncation)(*given)
    expected, of_words = OaXE(truncation)(*given)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(statistics["truncated"], of_words["truncated"], check_dtype=False)
    torch.testing.assert_close(NgramOaXE(n=5)(*given)[0], XE()(*given)[0])


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_has_its_parts(name: str) -> None:
    kind = CRITERIA[name]
    assert [field.name for field in dataclasses.fields(kind)] == list(vars(kind()))
    assert kind.inputs in get_args(Masking)
    assert isinstance(kind.has_blanks, bool)
    assert isinstance(kind.needs_order, bool)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().inputs = "unobserved"
    hidden, weight, target = layer_and_target()
    _, statistics = kind()(hidden, weight, target, 0.1)
    for pair in statistics.values():
        assert [tensor.shape for tensor in pair] == [(), ()]


def test_what_the_criteria_ask_of_the_model() -> None:
    expected = {
        "xe": ("partial-masks", False, False),
        "axe": ("unobserved", True, False),
        "oaxe": ("unobserved", False, True),
        "bag_of_ngrams": ("unobserved", False, False),
        "ngram_oaxe": ("unobserved", False, True),
    }
    assert CRITERIA.keys() == expected.keys()
    for name, parts in expected.items():
        kind = CRITERIA[name]
        assert (kind.inputs, kind.has_blanks, kind.needs_order) == parts
