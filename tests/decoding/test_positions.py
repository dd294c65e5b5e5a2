"""What each position of the decoder said, and what became of it: it adds up to the translation."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from oaxe.decoding.translator import Translator
from oaxe.search.hypothesis import Positions, special
from oaxe.systems import dag
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import BLANK, EOS
from tests.decoding.samples import SENTENCES
from tests.models import emphasise, micro

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cmlm": ({}, {}),
    "cmlm, kept": ({}, {"repeats": "keep"}),
    "cmlm, forbidden": ({}, {"repeats": "forbid"}),
    "cmlm, three passes": ({}, {"refine_steps": 3}),
    "cmlm, AXE": ({"loss": "axe"}, {"length_multiplier": 1.5}),
    "crf": ({}, {}),
    "flowseq": ({}, {}),
    "lanmt": ({}, {"refine_steps": 2}),
    "ctc": ({"upsample": 3}, {}),
    "ctc, bonus": ({"upsample": 3}, {"bonus": 1.0}),
    "ctc, samples": ({"upsample": 3}, {"method": "samples", "samples": 4}),
    "dag": ({"vertices": 3}, {}),
}


def translator(subwords: Subwords, case: str) -> Translator:
    options, decoding = CASES[case]
    sizes: dict[str, Any] = {"vocab_size": subwords.vocab_size, "max_length": 40}
    system = micro(case.split(",")[0], options=options, **sizes)
    if "ctc" in case or "AXE" in case:
        emphasise(system, BLANK)
    return Translator(system, subwords, decoding=decoding)


def fates_one_by_one(tokens: list[int], is_ctc: bool, merge: bool) -> Iterator[str]:
    """In CTC a blank is a fence between two equal words, in AXE it is nothing."""
    last = None
    for token in tokens:
        if token == BLANK:
            yield "blank"
        else:
            yield "repeat" if merge and token == last else "kept"
        if is_ctc or token != BLANK:
            last = token


def kept(said: Positions) -> list[int]:
    both = zip(said.tokens.tolist(), said.fates(), strict=True)
    return [token for token, fate in both if fate == "kept"]


@pytest.mark.parametrize("case", [case for case in CASES if case != "dag"])
def test_they_make_the_translation(case: str, subwords: Subwords) -> None:
    ours, seen = translator(subwords, case), set()
    found = [t for of in ours.translate_scored(SENTENCES) for t in of if t.length]
    assert len(found) >= 6
    for t in found:
        said = t.positions
        assert said is not None
        assert len(said.tokens) == t.length
        assert kept(said) == t.tokens
        tokens, is_ctc = said.tokens.tolist(), case.startswith("ctc")
        assert said.fates() == list(fates_one_by_one(tokens, is_ctc, case != "cmlm, kept"))
        seen |= set(said.fates())
        if case != "crf":  # whose neighbours have something to say, too
            assert said.log_probs.sum() == pytest.approx(t.log_probability, abs=1e-3)
        assert (said.log_probs <= 1e-5).all()
    if case not in ("cmlm, kept", "cmlm, forbidden"):
        assert "repeat" in seen
    assert ("blank" in seen) == ("ctc" in case or "AXE" in case)


@pytest.mark.parametrize("method", ["viterbi", "beam"])
def test_vertices_of_a_graph(method: str, subwords: Subwords) -> None:
    ours = translator(subwords, "dag")
    ours.change_decoding(method=method, top_words=4)
    model: Any = ours.system
    for text in (text for text in SENTENCES if text.strip()):
        best, *_ = ours.translate_scored([text])[0]
        said = best.positions
        assert said is not None
        source = torch.tensor([[*subwords.encode([text])[0], EOS]])
        with torch.no_grad():
            hidden, inputs = dag.decoded(model, source)
            logits = model.transformer.logits(hidden)[0]
            links = model.links(hidden, inputs == inputs)[0]
        logits[:, special()] = -torch.inf
        log_probs, words = logits.log_softmax(1).max(1)
        for at in said.kept if method == "beam" else ():  # not always the likeliest
            words[1 + at] = said.tokens[at]
            log_probs[1 + at] = logits.log_softmax(1)[1 + at, said.tokens[at]]
        assert said.tokens.tolist() == words[1:-1].tolist()
        assert said.log_probs == pytest.approx(log_probs[1:-1].numpy(), abs=1e-5)
        assert kept(said) == best.tokens
        assert set(said.fates()) <= {"kept", "skipped"}
        path = [0, *(1 + i for i in said.kept), len(words) - 1]
        total = sum(links[a, b].item() for a, b in pairwise(path))
        total += sum(log_probs[i].item() for i in path[1:-1])
        if method == "beam":  # other paths say it, too
            assert total < best.log_probability + 1e-3
        else:
            assert total == pytest.approx(best.log_probability, abs=1e-3)


def test_fates_on_a_path() -> None:
    tokens = np.array([8, 8, 8, 9, BLANK])
    said = Positions(tokens, np.zeros(5, np.float32), kept=[1, 3], path=[1, 2, 3])
    assert said.fates() == ["skipped", "kept", "repeat", "kept", "skipped"]


def test_none_where_there_are_none(subwords: Subwords) -> None:
    ours = translator(subwords, "dag")
    ours.change_decoding(method="samples")
    assert all(t.positions is None for t in ours.translate_scored(["two men"])[0])
