"""Details of the model in the box: what each position of its decoder predicted."""

import math
from itertools import groupby

import pytest

from oaxe.decoding.translator import Translator
from oaxe.serving.models import named
from tests.serving.samples import serving, translate


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_positions_make_the_translation(method: str) -> None:
    translator = Translator.from_pretrained()
    if method == "greedy":
        translator.change_decoding(method="greedy", bonus=1.0, lm=None)
    with serving(named(None, "box", translator)) as endpoint:
        text = "The old man is <here>. I do not know who you are, and I do not want to know."
        _, answer = translate(endpoint, {"q": text, "details": True})
        _, without = translate(endpoint, {"q": text})
    assert len(answer["details"]) == 2
    assert answer["translatedText"] == without["translatedText"]
    seen = set()
    for sentence in answer["details"]:
        best, *others = sentence["translations"]
        assert len(others) == (19 if method == "beam" else 0)
        positions = best["positions"]
        assert len(positions) == best["length"]
        assert all(0 < position["probability"] <= 1 for position in positions)
        if method == "greedy":
            logs = [math.log(position["probability"]) for position in positions]
            assert sum(logs) / len(logs) == pytest.approx(best["score"], abs=1e-3)
        kept = [position["subword"] for position in positions if position["fate"] == "kept"]
        assert "".join(kept).replace("\u2581", " ").strip() == best["text"]
        subwords = [position["subword"] for position in positions]
        assert [word for word, _ in groupby(subwords) if word != "<blank>"] == kept
        seen |= {position["fate"] for position in positions}
    assert seen == {"kept", "blank", "repeat"}
