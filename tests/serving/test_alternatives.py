"""Alternatives of models that search with a beam are its other translations, over HTTP."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from oaxe.decoding.exported import export
from oaxe.decoding.translator import Option, Translation, Translator
from oaxe.search.one_pass import hypotheses
from oaxe.serving.models import named
from oaxe.systems import ctc, dag
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import EOS
from tests.decoding.conftest import subwords as subwords
from tests.models import emphasise, micro
from tests.serving.samples import model_of, serving, translate

SENTENCE = "the dog sleeps in the old boat"
BEAM: dict[str, Option] = {"method": "beam", "beam": 12, "top_words": 4}


def translator(name: str, subwords: Subwords) -> Translator:
    system = emphasise(micro(name, vocab_size=subwords.vocab_size, max_length=40), 5)  # blanks
    return Translator(system, subwords, languages=("en", "xx"))


@torch.no_grad()
def on_tensors(ours: Translator) -> list[str]:
    """The different texts that the search finds that GPUs use, best first."""
    source = torch.tensor([[*ours.subwords.encode([SENTENCE])[0], EOS]])
    search = dag.search if ours.system.name == "dag" else ctc.search
    how: Any = ours.decoding_with(**BEAM)
    (found,) = hypotheses(
        *search(ours.system, source, decoding=how, lm=None, everywhere=False), batch=1
    )
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    return list(dict.fromkeys(ours.subwords.decode([h.tokens for h in found])))


@pytest.mark.parametrize("kind", ["ctc", "dag", "ctc, exported", "dag, exported"])
def test_alternatives_are_the_other_beams(kind: str, subwords: Subwords, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = ours = translator(kind.split(",")[0], subwords)
    expected = on_tensors(ours)
    assert len(expected) > 5
    if "exported" in kind:
        export(ours, tmp_path / "cpu")
        model = Translator.from_pretrained(tmp_path / "cpu", threads=1)
    with serving(named(None, "model", model, **BEAM)) as endpoint:
        _, answer = translate(endpoint, {"q": SENTENCE, "alternatives": 20, "details": True})
        _, three = translate(endpoint, {"q": SENTENCE, "alternatives": 3})
        _, none = translate(endpoint, {"q": SENTENCE})
    assert [answer["translatedText"], *answer["alternatives"]] == expected
    assert [three["translatedText"], *three["alternatives"]] == expected[:4]
    assert none["translatedText"] == expected[0]
    assert "alternatives" not in none
    scores = [found["score"] for found in answer["details"][0]["translations"]]
    assert scores == sorted(scores, reverse=True)
    for found in answer["details"][0]["translations"]:
        kept = [said["subword"] for said in found["positions"] if said["fate"] == "kept"]
        assert kept == [ours.subwords.piece(token) for token in found["tokens"]]


@pytest.mark.parametrize("kind", ["ctc", "dag"])
def test_one_translation_has_no_alternatives(kind: str, subwords: Subwords) -> None:
    model = translator(kind, subwords)  # the likeliest labels; the best path
    with serving(named(None, "model", model)) as endpoint:
        _, answer = translate(endpoint, {"q": SENTENCE, "alternatives": 20})
    assert answer["translatedText"] == model.translate([SENTENCE])[0]
    assert answer["alternatives"] == []


def test_a_text_that_two_subword_sequences_make_is_sent_once() -> None:
    def twice(sentences: Sequence[str], **how: Any) -> list[list[Translation]]:
        texts = ["best", "other", "best", "other", "last"]
        return [[Translation(t, -float(i), 4, -1.0, [i]) for i, t in enumerate(texts)]] * len(
            sentences
        )

    with serving(model_of(translate=twice)) as endpoint:
        _, answer = translate(endpoint, {"q": "one", "alternatives": 2})
    assert answer["alternatives"] == ["other", "last"]
