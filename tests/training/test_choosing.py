"""How a finished model decodes is chosen on validation text."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from oaxe.decoding.translator import Translator
from oaxe.text.bleu import corpus_bleu
from oaxe.text.corpus import Corpus
from oaxe.training import validation
from oaxe.training.run import load_translator
from oaxe.training.validation import choose_decoding
from tests.models import micro
from tests.runs import settings_of, train_on_ranks, train_small

CTC = {"model__system": "ctc", "train__steps": 20, "validation__every": 20}


class Words:
    """As many subwords as a small model has."""

    vocab_size = 30


def test_options_are_chosen_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = micro("transformer")
    translator = Translator(model, Words(), decoding={"beam": 2, "length_penalty": 1.5})  # type: ignore[arg-type]
    choices = {"length_penalty": (0.5, 1.0, 1.5, 2.0), "max_ratio": (1.0, 2.0, 3.0)}
    monkeypatch.setattr(model, "choices", lambda decoding: choices)
    asked = []

    def scores(given: Translator, _: object) -> dict[str, Any]:
        penalty, ratio = (getattr(given.decoding_with(), name) for name in choices)
        asked.append((penalty, ratio))
        score = -abs(penalty - 1.1) - (ratio > 2)  # as good for a ratio of 1 as for one of 2
        return {"score": score, "output_length": 9, "reference_length": 10}

    monkeypatch.setattr(validation, "scores", scores)
    tried = choose_decoding(translator, None)  # type: ignore[arg-type]
    assert translator.decoding == {"beam": 2, "length_penalty": 1.0, "max_ratio": 2.0}
    assert asked == [(1.5, 2), (0.5, 2), (1.0, 2), (2.0, 2), (1.0, 1.0), (1.0, 3.0)]
    assert tried[0] == {
        "length_penalty": 1.0, "max_ratio": 2.0, "bleu": pytest.approx(-0.1), "length_ratio": 0.9
    }  # fmt: skip
    assert [record["bleu"] for record in tried] == sorted((r["bleu"] for r in tried), reverse=True)


def test_the_finished_model_decodes_as_was_best(data: Path, tmp_path: Path) -> None:
    """Also after a kill before it was written, and on two ranks."""
    run = tmp_path / "run"
    result, printed = train_small(settings_of(data, run, **CTC))
    written = json.loads((run / "result.json").read_text())
    assert written == result
    translator = load_translator(str(run), "cpu")
    assert translator.decoding == result["decoding"]
    valid = Corpus.open(data, "valid")
    for record in result["decodings"]:
        texts = translator.translate(valid.sources_text, bonus=record["bonus"])
        expected = corpus_bleu(texts, [valid.targets_text], "bb")
        assert record["bleu"] == pytest.approx(expected["score"])
        length = expected["output_length"] / expected["reference_length"]
        assert record["length_ratio"] == pytest.approx(length)
    by_bonus = {record["bonus"]: record for record in result["decodings"]}
    assert len(by_bonus) == 8
    assert by_bonus[3.0]["length_ratio"] > by_bonus[0.0]["length_ratio"]
    assert result["bleu"] == max(record["bleu"] for record in result["decodings"])
    assert result["decoding"]["bonus"] > 0  # short outputs: it learns blanks first
    assert f"the best of 8 on validation: {translator.decoding_with()};" in printed

    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    again, _ = train_small(settings_of(data, run, **CTC))
    assert {**again, "seconds": 0} == {**result, "seconds": 0}
    assert train_on_ranks(settings_of(data, tmp_path / "two", **CTC)) == ["", ""]
    shared = json.loads((tmp_path / "two" / "result.json").read_text())
    assert [r["bonus"] for r in shared["decodings"]] == [r["bonus"] for r in result["decodings"]]


@pytest.mark.parametrize(
    ("system", "wanted", "chosen"),
    [("cmlm", None, False), ("cmlm", True, True), ("ctc", False, False), ("ctc", None, True),
     ("language_model", True, False)],
)  # fmt: skip
def test_only_where_it_is_wanted(
    system: str, wanted: bool | None, chosen: bool, data: Path, tmp_path: Path
) -> None:
    changes = {"model__system": system, "train__steps": 1, "validation__choose_decoding": wanted}
    result, _ = train_small(settings_of(data, tmp_path, **changes))
    assert ("decodings" in result) == chosen
