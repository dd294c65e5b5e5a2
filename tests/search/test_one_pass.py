"""One-pass decoding against a naive re-computation, one sentence and one length at a time."""

from functools import partial
from itertools import groupby, pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.model.transformer import Transformer
from oaxe.search import one_pass
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.one_pass import translate_lengths
from oaxe.search.options import Repeats
from oaxe.search.words import likeliest_apart
from oaxe.systems import cmlm
from oaxe.text.symbols import BLANK, EOS, LENGTH, MASK, PAD, SYMBOLS
from tests.models import emphasise, hidden_states, random_batch
from tests.models import micro as micro_system

SPECIAL = set(range(len(SYMBOLS)))


def micro(norm: str = "post", **architecture: Any) -> cmlm.Model:
    model = micro_system("cmlm", norm, **architecture)
    assert isinstance(model, cmlm.Model)
    return model


def naive_pass(
    model: Transformer, source: list[int], inputs: list[int], blank: bool = False
) -> tuple[list[int], list[float]]:
    """Best token of each position and its log-probability, in plain Python around the model."""
    hidden = hidden_states(model, torch.tensor([source]), torch.tensor([inputs]))
    words, log_probs = [], []
    for logits in model.logits(hidden)[0].double():
        for symbol in SPECIAL - ({BLANK} if blank else set()):
            logits[symbol] = float("-inf")
        log_prob, word = logits.log_softmax(0).max(0)
        words.append(int(word))
        log_probs.append(float(log_prob))
    return words, log_probs


def without_repeats(words: list[int]) -> list[int]:
    return [word for word, _ in groupby(words)]


@torch.no_grad()
def naive(
    model: cmlm.Model,
    row: Tensor,
    candidates: int,
    repeats: str = "merge",
    steps: int = 1,
    blank: bool = False,
    merged: bool = False,
    factor: float = 1.0,
) -> list[Hypothesis]:
    source = [LENGTH, *row[row != PAD].tolist()]
    state = model.transformer.encode(torch.tensor([source])).hidden[0, 0]
    length_logits = model.length.output(state).tolist()
    by_likelihood = sorted(range(1, 13), key=lambda n: -length_logits[n])
    hypotheses = []
    for likely in by_likelihood[:candidates]:
        n = min(max(round(likely * factor), 1), model.transformer.max_length)
        words, log_probs = naive_pass(model.transformer, source, [MASK] * n, blank)
        for step in range(1, steps):
            hidden = sorted(range(n), key=lambda i: log_probs[i])[: n * (steps - step) // steps]
            inputs = [MASK if i in hidden else words[i] for i in range(n)]
            new_words, new_log_probs = naive_pass(model.transformer, source, inputs, blank)
            for i in hidden:
                words[i], log_probs[i] = new_words[i], new_log_probs[i]
        kept = [w for w in words if w != BLANK]
        kept = kept if repeats == "keep" else without_repeats(kept)
        scored = log_probs
        if merged:
            scored = [p for i, p in enumerate(log_probs) if not i or words[i] != words[i - 1]]
        score = sum(scored) / len(scored)
        hypotheses.append(Hypothesis(kept, score, n, sum(log_probs)))
    return sorted(hypotheses, key=lambda h: -h.score)


def assert_same(ours: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert len(ours) == len(expected) > 0
    for a, b in zip(ours, expected, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        assert [h.length for h in a] == [h.length for h in b]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-4)
        sums = [h.log_probability for h in b]
        assert [h.log_probability for h in a] == pytest.approx(sums, abs=1e-3)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("repeats", ["merge", "keep"])
@pytest.mark.parametrize("candidates", [1, 5, 12])
def test_equals_naive(norm: str, repeats: Repeats, candidates: int) -> None:
    model = micro(norm)
    source = random_batch(9, 3, 13, 2, 6)
    ours = translate_lengths(model, source, length_candidates=candidates, repeats=repeats)
    assert_same(ours, [naive(model, row, candidates, repeats) for row in source])


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.0])
def test_predicted_lengths_are_multiplied(factor: float) -> None:
    model = micro()
    source = random_batch(9, 3, 13, 2, 6)
    ours = translate_lengths(model, source, length_candidates=3, length_multiplier=factor)
    plain = translate_lengths(model, source, length_candidates=3)
    expected = [naive(model, row, 3, factor=factor) for row in source]
    for a, b, before in zip(ours, expected, plain, strict=True):
        assert {(tuple(h.tokens), h.length) for h in a} == {(tuple(h.tokens), h.length) for h in b}
        assert sum(h.length for h in a) != sum(h.length for h in before)


@pytest.mark.parametrize("repeats", ["merge", "keep"])
def test_lengths_can_be_compared_without_repeats(repeats: Repeats) -> None:
    model = micro()
    source = random_batch(9, 3, 13, 2, 6)
    ours = translate_lengths(
        model, source, length_candidates=12, repeats=repeats, score_merged=True
    )
    assert_same(ours, [naive(model, row, 12, repeats, merged=True) for row in source])
    other = translate_lengths(model, source, length_candidates=12, repeats=repeats)
    scores = ([[h.score for h in row] for row in found] for found in (ours, other))
    assert any(a != pytest.approx(b, abs=1e-3) for a, b in zip(*scores, strict=True))


@pytest.mark.parametrize("steps", [2, 4, 10])
def test_refinement_equals_naive(steps: int) -> None:
    model = micro()
    source = random_batch(9, 3, 13, 2)
    ours = translate_lengths(model, source, length_candidates=3, refine_steps=steps)
    assert_same(ours, [naive(model, row, 3, steps=steps) for row in source])
    once = translate_lengths(model, source, length_candidates=3)
    assert any(a[0].tokens != b[0].tokens for a, b in zip(ours, once, strict=True))


def best_apart(log_probs: Tensor) -> list[int]:
    """The likeliest of all sequences without equal neighbours but blanks; ``(length, vocab)``."""
    words = [w for w in range(log_probs.shape[1]) if log_probs[0, w] > -torch.inf]
    apart = (
        sequence
        for sequence in product(words, repeat=len(log_probs))
        if all(a != b or a == BLANK for a, b in pairwise(sequence))
    )
    places = range(len(log_probs))
    return max(map(list, apart), key=lambda sequence: float(log_probs[places, sequence].sum()))


@pytest.mark.parametrize("may_be_blank", [False, True])
def test_words_without_repeats_equal_enumeration(may_be_blank: bool) -> None:
    """Three words at each position are enough; one of four is likely everywhere."""
    model, hidden = micro(vocab_size=11).transformer, torch.randn(60, 5, 32)
    likely = model.output_weight[[8, BLANK]].detach()
    hidden += 0.5 * torch.rand(60, 1, 2) @ likely
    mask = torch.arange(5) < (torch.arange(60) % 5 + 1).unsqueeze(1)
    with torch.no_grad():
        found, log_probs = likeliest_apart(model, hidden, mask, may_be_blank=may_be_blank)
        logits = model.logits(hidden).double()
    logits[..., list(SPECIAL - ({BLANK} if may_be_blank else set()))] = -torch.inf
    n_changed = n_blank = 0
    for row, real in enumerate(mask):
        expected = logits[row, real].log_softmax(-1)
        best = best_apart(expected)
        assert found[row, real].tolist() == best
        of_words = expected[range(len(best)), best].tolist()
        assert log_probs[row, real].tolist() == pytest.approx(of_words, abs=1e-4)
        assert not found[row, ~real].any()
        assert not log_probs[row, ~real].any()
        n_changed += best != expected.argmax(1).tolist()
        n_blank += (BLANK, BLANK) in pairwise(best)
    assert 5 < n_changed < 55
    assert bool(n_blank) == may_be_blank


def test_translates_without_repeats() -> None:
    model = emphasise(micro(), 8, 9)
    source, lengths = random_batch(9, 3, 13, 2), torch.tensor([[7, 4], [2, 12], [9, 5], [3, 1]])
    ours = translate_lengths(model, source, lengths=lengths, repeats="forbid")
    kept = translate_lengths(model, source, lengths=lengths, repeats="keep")
    n_repeats = 0
    for found, others in zip(ours, kept, strict=True):
        for hypothesis in found:
            (other,) = (h for h in others if h.length == hypothesis.length)
            assert (
                len(hypothesis.tokens) == hypothesis.length
            )  # unlike merging, it keeps the length
            assert all(a != b for a, b in pairwise(hypothesis.tokens))
            assert hypothesis.log_probability <= other.log_probability + 1e-5
            n_repeats += sum(a == b for a, b in pairwise(other.tokens))
            if without_repeats(other.tokens) == other.tokens:
                assert hypothesis.tokens == other.tokens
    assert n_repeats > 5


def test_words_apart_may_meet_where_a_blank_is_removed() -> None:
    """They are merged: no output has equal neighbours."""
    model = emphasise(micro("pre"), BLANK, 8)
    ours = translate_lengths(
        model, random_batch(9, 3, 6, 12), length_candidates=9, remove_blanks=True, repeats="forbid"
    )
    tokens = [h.tokens for hypotheses in ours for h in hypotheses]
    assert all(a != b for t in tokens for a, b in pairwise(t))
    assert any(len(h.tokens) < h.length for hypotheses in ours for h in hypotheses)


@pytest.mark.parametrize("penalty", [0.0, 0.5, 2.0])
def test_length_penalty(penalty: float) -> None:
    """The same hypotheses, ordered by the sum of log-probabilities over a power of the length."""
    model, source = micro(), random_batch(9, 3, 13, 2)
    means = translate_lengths(model, source, length_candidates=12)
    found = translate_lengths(model, source, length_candidates=12, length_penalty=penalty)
    moved = 0
    for before, after in zip(means, found, strict=True):
        sums = {h.length: h.score * h.length for h in before}
        expected = sorted(before, key=lambda h: -sums[h.length] / h.length**penalty)
        assert [h.tokens for h in after] == [h.tokens for h in expected]
        for h in after:
            assert h.score == pytest.approx(sums[h.length] / h.length**penalty, rel=1e-5)
        moved += after[0].length - before[0].length
    assert moved > 0 if penalty > 1 else moved < 0


def test_more_candidates_than_lengths() -> None:
    model = micro()
    (hypotheses,) = translate_lengths(model, random_batch(4), length_candidates=50)
    assert sorted(h.length for h in hypotheses) == list(range(1, 13))


def test_candidate_count_and_batch_mates_change_no_hypothesis() -> None:
    model = micro()
    source = random_batch(9, 3, 13, 2, 6)
    many = translate_lengths(model, source, length_candidates=12)
    for row, sentence in enumerate(source):
        alone = sentence[sentence != PAD].unsqueeze(0)
        for few in translate_lengths(model, alone, length_candidates=3)[0]:
            (same,) = (h for h in many[row] if h.length == few.length)
            assert few.tokens == same.tokens
            assert few.score == pytest.approx(same.score, abs=1e-4)


def test_given_lengths() -> None:
    model = micro()
    lengths = torch.tensor([[3, 7], [1, 12]])
    ours = translate_lengths(model, random_batch(5, 8), lengths=lengths, repeats="keep")
    assert [sorted(h.length for h in hs) for hs in ours] == [[3, 7], [1, 12]]
    assert all(len(h.tokens) == h.length for hs in ours for h in hs)


def test_logits_in_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = micro(), random_batch(9, 3, 6)
    whole = translate_lengths(model, source)
    monkeypatch.setattr("oaxe.search.words.LOGITS_AT_ONCE", {"cpu": 100})
    assert_same(translate_lengths(model, source), whole)


def test_special_symbols_are_never_predicted() -> None:
    model = emphasise(micro(), *SPECIAL)
    for hypotheses in translate_lengths(model, random_batch(9, 3, 6), length_candidates=12):
        for hypothesis in hypotheses:
            assert hypothesis.tokens
            assert not SPECIAL & set(hypothesis.tokens)


def test_blanks_of_axe_are_removed() -> None:
    model = emphasise(micro("pre"), BLANK)
    source = random_batch(9, 3, 6)
    ours = translate_lengths(model, source, remove_blanks=True, repeats="keep")
    assert_same(ours, [naive(model, row, 5, "keep", blank=True) for row in source])
    assert any(len(h.tokens) < h.length for hs in ours for h in hs)
    assert not any(BLANK in h.tokens for hs in ours for h in hs)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([8, 8, BLANK, 8, 9, 9], [8, 9]),
        ([BLANK, BLANK], []),
        ([8], [8]),
        ([BLANK, 7, BLANK, BLANK, 7, 8], [7, 8]),
    ],
)
def test_a_blank_does_not_keep_equal_words_apart(
    words: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike in CTC: a blank of AXE is a position left over."""
    predicted = torch.tensor([words])
    fixed = predicted, torch.zeros(predicted.shape)
    monkeypatch.setattr(one_pass, "predict", lambda *_, **__: fixed)
    source, lengths = torch.full_like(predicted, EOS), torch.tensor([[len(words)]])
    (found,) = translate_lengths(micro(), source, lengths=lengths, remove_blanks=True)
    assert found[0].tokens == expected


def test_the_decoder_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = micro()
    calls: list[str] = []

    def counted(name: str, *arguments: Any) -> Any:
        calls.append(name)
        return getattr(Transformer, name)(model.transformer, *arguments)

    for name in ("encode", "decode"):
        monkeypatch.setattr(model.transformer, name, partial(counted, name))
    translate_lengths(model, random_batch(9, 3, 6))
    assert calls == ["encode", "decode"]
    translate_lengths(model, random_batch(9, 3, 6), refine_steps=4)
    assert calls[2:] == ["encode"] + 4 * ["decode"]


def test_under_autocast() -> None:
    model, source = micro(), random_batch(9, 3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        half = translate_lengths(model, source, length_candidates=12)
    full = translate_lengths(model, source, length_candidates=12)
    for a, b in zip(half, full, strict=True):
        assert max(h.score for h in a) == pytest.approx(max(h.score for h in b), abs=0.1)
