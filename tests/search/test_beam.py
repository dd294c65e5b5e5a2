"""Beam search against an independent one in plain Python, and against all possible sentences."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.model.transformer import Transformer
from oaxe.search.beam import beam_search
from oaxe.search.hypothesis import Hypothesis
from oaxe.text.symbols import BOS, EOS, PAD, SYMBOLS
from tests.models import (
    VOCAB,
    eager_to_end,
    emphasise,
    hidden_states,
    micro_transformer,
    random_batch,
)

SPECIAL = set(range(len(SYMBOLS)))


def causal(norm: str = "post", **arguments: Any) -> Transformer:
    return micro_transformer(norm, causal=True, **arguments)


def log_probs_after(
    model: Transformer, source: Tensor, *prefixes: list[int]
) -> list[dict[int, float]]:
    """Of every token that may come next; the empty translation is not allowed."""
    inputs = torch.tensor([[BOS, *prefix] for prefix in prefixes])
    hidden = hidden_states(model, source.expand(len(prefixes), -1), inputs)
    logits = model.logits(hidden[:, -1]).double()
    words = range(logits.shape[1])
    allowed = [t for t in words if t not in SPECIAL or (t == EOS and prefixes[0])]
    rows = logits[:, allowed].log_softmax(1).tolist()
    return [dict(zip(allowed, row, strict=True)) for row in rows]


@torch.no_grad()
def naive_beam(
    model: Transformer, row: Tensor, beam: int, penalty: float, ratio: float = 2.0
) -> list[Hypothesis]:
    source = row[row != PAD].unsqueeze(0)
    limit = min(int(ratio * source.shape[1]) + 10, model.max_length)
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for step in range(limit + 1):
        options = [
            (total + log_prob, [*prefix, token])
            for (total, prefix), after in zip(
                alive, log_probs_after(model, source, *[p for _, p in alive]), strict=True
            )
            for token, log_prob in after.items()
            if step < limit or token == EOS
        ]
        options.sort(key=lambda option: -option[0])
        for total, words in options[:beam]:
            if words[-1] == EOS:
                score = total / len(words) ** penalty
                finished.append(Hypothesis(words[:-1], score, len(words) - 1, total))
        if len(finished) >= beam:
            break
        alive = [option for option in options if option[1][-1] != EOS][:beam]
    return sorted(finished, key=lambda h: -h.score)[:beam]


def assert_same(ours: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert len(ours) == len(expected) > 0
    for a, b in zip(ours, expected, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        assert [h.length for h in a] == [h.length for h in b]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-4)
        sums = [h.log_probability for h in b]
        assert [h.log_probability for h in a] == pytest.approx(sums, abs=1e-3)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_equals_naive(beam: int, penalty: float, norm: str) -> None:
    model = eager_to_end(causal(norm))
    source = random_batch(9, 3, 13, 2, 6)
    expected = [naive_beam(model, row, beam, penalty) for row in source]
    for slots in (5, 2, 1):  # the others wait
        tokens = slots * beam * source.shape[1]
        ours = beam_search(model, source, beam=beam, length_penalty=penalty, batch_tokens=tokens)
        assert_same(ours, expected)


def test_sentences_that_leave_early_change_nothing() -> None:
    """Longer than one round of checks, so that the batch shrinks on the way."""
    model = eager_to_end(causal("pre", max_length=40))
    source = random_batch(9, 3, 13, 2, 6, 30, 21)
    expected = [naive_beam(model, row, 3, 1.0) for row in source]
    assert {h[0].length > 8 for h in expected} == {True, False}  # else this test says nothing
    for slots in (7, 3):
        tokens = slots * 3 * source.shape[1]
        assert_same(beam_search(model, source, beam=3, batch_tokens=tokens), expected)


@torch.no_grad()
def test_beam_of_one_is_greedy() -> None:
    model = eager_to_end(causal())
    source = random_batch(9, 3, 13, 2, 6)
    for row, (hypothesis,) in zip(source, beam_search(model, source, beam=1), strict=True):
        words: list[int] = []
        while len(words) < 12:
            (after,) = log_probs_after(model, row[row != PAD].unsqueeze(0), words)
            best = max(after, key=lambda token: after[token])
            if best == EOS:
                break
            words.append(best)
        assert hypothesis.tokens == words


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@torch.no_grad()
def test_a_beam_wide_enough_finds_the_best_of_all_sentences(penalty: float) -> None:
    model = eager_to_end(causal(vocab_size=10, max_length=3))
    source = torch.tensor([[8, 9, EOS], [7, EOS, PAD]])
    ours = beam_search(model, source, beam=40, length_penalty=penalty)
    for row, hypotheses in zip(source, ours, strict=True):
        sentence = row[row != PAD].unsqueeze(0)
        scores = {}
        for n in (1, 2, 3):
            for words in product((7, 8, 9), repeat=n):
                total = 0.0
                for i, token in enumerate([*words, EOS]):
                    total += log_probs_after(model, sentence, list(words[:i]))[0][token]
                scores[words] = total / (n + 1) ** penalty
        assert len(hypotheses) == len(scores) == 39
        ranked = sorted(scores, key=lambda w: -scores[w])
        assert [tuple(h.tokens) for h in hypotheses] == ranked
        assert [h.score for h in hypotheses] == pytest.approx([scores[w] for w in ranked], abs=1e-4)


def test_length_is_limited_by_the_source_and_by_max_length() -> None:
    model = causal(max_length=40)
    emphasise(model, EOS, factor=0)
    source = random_batch(5, 20)
    for ratio, limits in ((0.0, [10, 10]), (1.0, [15, 30]), (3.0, [25, 40])):
        ours = beam_search(model, source, beam=1, max_ratio=ratio)
        assert all(h.length <= limit for hs, limit in zip(ours, limits, strict=True) for h in hs)
        assert_same(ours, [naive_beam(model, row, 1, 1.0, ratio) for row in source])


def test_no_sentences() -> None:
    assert beam_search(causal(), random_batch(3)[:0]) == []


def test_special_symbols_are_never_predicted() -> None:
    model = emphasise(causal(), *SPECIAL)
    for hypotheses in beam_search(model, random_batch(9, 3, 6)):
        for hypothesis in hypotheses:
            assert hypothesis.tokens
            assert not SPECIAL & set(hypothesis.tokens)


def test_a_beam_wider_than_the_vocabulary() -> None:
    model = causal()
    (hypotheses,) = beam_search(model, random_batch(4), beam=VOCAB + 10)
    tokens = [tuple(h.tokens) for h in hypotheses]
    assert len(set(tokens)) == len(tokens) == VOCAB + 10
    assert all(h.score > float("-inf") for h in hypotheses)


def test_rejects_a_model_that_is_not_causal_and_a_beam_of_none() -> None:
    with pytest.raises(ValueError, match="needs a causal model"):
        beam_search(micro_transformer(), random_batch(3))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        beam_search(causal(), random_batch(3), beam=0)
