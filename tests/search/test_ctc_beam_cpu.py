"""The search in C and in Python: the same translations as that on tensors."""

import math
import warnings
from importlib.util import find_spec
from itertools import groupby, product

import numpy as np
import pytest
import torch

from oaxe.search import ctc_beam_cpu
from oaxe.search.ctc_beam import Positions, ctc_prefix_beam
from oaxe.search.ctc_beam_cpu import How, Labels, prefix_beam
from oaxe.search.ngram_table import NGramTable
from oaxe.search.ngrams import Fluency, LanguageModel
from oaxe.search.one_pass import hypotheses
from oaxe.support.extras import warn_not_compiled
from oaxe.text.symbols import BLANK
from tests.search.fluency import small_ngrams
from tests.search.test_ctc_beam import random_positions

KINDS = ["C", "Python"] if find_spec("oaxe.search._ctc_beam") else ["Python"]


@pytest.fixture(params=KINDS)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        monkeypatch.setattr(ctc_beam_cpu, "_ctc_beam", None)
        monkeypatch.setattr(ctc_beam_cpu, "warn_not_compiled", lambda instead: None)


def one_behind_the_other(positions: Positions) -> Labels:
    return Labels(*(of[positions.mask].numpy() for of in positions[:3]))


@pytest.mark.usefixtures("_kind")
@pytest.mark.parametrize("order", [0, 1, 2, 4])
@pytest.mark.parametrize("weight", [0.6, -0.2])
@pytest.mark.parametrize("beam", [1, 3, 20, 1000])
@pytest.mark.parametrize("bonus", [0.0, 0.8])
def test_finds_what_is_found_on_tensors(order: int, weight: float, beam: int, bonus: float) -> None:
    lengths = [5, 1, 4, 7, 2]
    positions = random_positions(*lengths, n_words=4, vocab=4)
    ngrams = small_ngrams(order=order) if order else None
    fluency = Fluency(LanguageModel(ngrams) if ngrams else None, weight)
    expected = hypotheses(
        *ctc_prefix_beam(positions, beam=beam, bonus=bonus, fluency=fluency), batch=len(lengths)
    )
    how = How(beam, bonus, NGramTable(ngrams) if ngrams else None, weight)
    found = prefix_beam(one_behind_the_other(positions), np.array(lengths), how)
    for ours, theirs in zip(found, expected, strict=True):
        assert len(ours) == len(theirs)
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-5)
        same_text = {tuple(one.tokens): one for one in theirs}
        assert len(same_text) == len(theirs)
        for one in ours:
            other = same_text[tuple(one.tokens)]
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-5)
            assert one.length == other.length
    assert sum(map(len, found)) >= len(lengths)


@pytest.mark.usefixtures("_kind")
def test_impossible_words_and_blanks() -> None:
    never = -math.inf
    words = np.array([[8, 9]] * 3)
    certain = np.array([[0.0, never], [0.0, never], [never, 0.0]], np.float32)
    positions = Labels(words, certain, np.full(3, never, np.float32))
    ((ours,),) = prefix_beam(positions, np.array([3]), How(9))
    assert (ours.tokens, ours.log_probability, ours.length) == ([8, 9], 0.0, 3)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_alignments_are_the_likeliest_of_all(length: int) -> None:
    positions = random_positions(length, n_words=2, vocab=2)
    labels = one_behind_the_other(positions)
    (found,) = prefix_beam(labels, np.array([length]), How(10_000))
    best: dict[tuple[int, ...], float] = {}
    columns = [
        {BLANK: blank, **dict(zip(words, log_probs, strict=True))}
        for words, log_probs, blank in zip(*(of.tolist() for of in labels), strict=True)
    ]
    for path in product(*columns):
        text = tuple(label for label, _ in groupby(path) if label != BLANK)
        total = sum(says[label] for says, label in zip(columns, path, strict=True))
        best[text] = max(best.get(text, -math.inf), total)
    assert len(found) == len(best)
    for one in found:
        said = one.positions
        assert said is not None
        assert said.tokens[said.kept].tolist() == one.tokens
        assert [label for label, _ in groupby(said.tokens) if label != BLANK] == one.tokens
        assert said.log_probs.sum() == pytest.approx(best[tuple(one.tokens)], abs=1e-5)
        assert said.fates().count("kept") == len(one.tokens)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_tables_are_language_models(order: int) -> None:
    """The same log-probabilities as on tensors, along random sentences."""
    ngrams = small_ngrams(order=order)
    table, lm = NGramTable(ngrams), LanguageModel(ngrams)
    words = torch.randint(8, ngrams.vocab_size, (40,)).tolist()
    state, context = table.begin, lm.begin(torch.zeros(()))
    for word in words:
        log_prob, state = table.log_prob(state, word)
        assert log_prob == pytest.approx(lm.log_prob(context, torch.tensor(word)).item(), abs=1e-6)
        context = lm.after(context, torch.tensor(word))
        assert table.end(state) == pytest.approx(lm.end(context).item(), abs=1e-6)


def test_says_once_that_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctc_beam_cpu, "_ctc_beam", None)
    warn_not_compiled.cache_clear()
    positions = one_behind_the_other(random_positions(3))
    with pytest.warns(UserWarning, match="in Python"):
        prefix_beam(positions, np.array([3]), How(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prefix_beam(positions, np.array([3]), How(2))
