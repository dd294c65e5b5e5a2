"""The model in the box: shown, and made from a run."""

import io
import json
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from oaxe.decoding.translator import Translator
from oaxe.text.bleu import corpus_bleu
from oaxe.text.manifest import SUBWORDS
from oaxe.text.prepare import prepare
from reproduction import box
from tests.runs import settings_of, train_small


def test_recorded_outputs_are_those_of_the_sentences() -> None:
    found = box.recorded_outputs()
    assert len(found) == len(box.SENTENCES)
    for source, output in zip(box.SENTENCES.values(), found, strict=True):
        assert len(source.split()) >= 10
        assert output.strip()
    assert "Australien" in found[3]  # of the line about Australia
    assert "Boston" in found[4]


def test_without_the_model_the_demonstration_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oaxe.decoding.box.BOX", tmp_path)
    printed = io.StringIO()
    box.show_translations(Console(file=printed, width=300))
    assert "no model of its own" in printed.getvalue()


def test_is_made_of_a_run_and_shown(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lines = tmp_path / "run", tmp_path / "lines"
    train_small(settings_of(data, run, model__system="ctc", train__steps=2))
    lines.write_text("1 2 3\n4 5\n")
    both = lines, lines
    prepare(
        tmp_path / "tested",
        source_language="aa",
        target_language="bb",
        train=both,
        valid=both,
        test=both,
        subwords=data / SUBWORDS,
        console=Console(quiet=True),
    )
    made = tmp_path / "models" / "aa-bb"
    box.make(
        run,
        tmp_path / "tested",
        {"the same run": run},
        distilled=False,
        console=Console(quiet=True),
        folder=made,
    )
    scores = json.loads((made / "scores.json").read_text())
    translator = Translator.from_pretrained(made)
    assert translator.decoding["lm"] == str(made / "ngrams")
    found = Translator.from_pretrained(run).translate(
        ["1 2 3", "4 5"], **cast(dict[str, Any], translator.decoding)
    )
    expected = corpus_bleu(found, [["1 2 3", "4 5"]], "de")["score"]
    assert scores["bleu"]["the same in torch"]["score"] == expected
    card = (made / "README.md").read_text()
    assert f"{scores['bleu']['the same run']['score']:.1f}" in card
    assert "2 pairs, raw text" in card
    monkeypatch.setattr("oaxe.decoding.box.BOX", made)
    printed = io.StringIO()
    box.show_translations(Console(file=printed, width=300))
    translator = Translator.from_pretrained(made)
    for source in box.SENTENCES.values():
        assert source in printed.getvalue()
        assert translator.translate([source])[0] in printed.getvalue()
    assert " ms " in printed.getvalue()
