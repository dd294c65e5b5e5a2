"""How an exported model decodes: chosen on the validation text of its run."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from oaxe.decoding.exported import export
from oaxe.decoding.translator import Translator
from oaxe.text.corpus import Corpus
from oaxe.text.ngram_files import save_ngrams
from oaxe.text.ngrams import estimate
from oaxe.training import exporting
from oaxe.training.exporting import SHARES, WORTH, choose_cpu_decoding, choose_share, validation_of
from oaxe.training.validation import scores
from tests.runs import settings_of, train_small


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("exporting") / "run"
    train_small(settings_of(data, run, decoding__length_candidates=4))
    return run


def test_lengths_that_are_worth_their_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator.from_pretrained(run)
    validation = validation_of(translator, str(run))
    assert validation
    tried = choose_share(translator, validation)
    assert [record["length_share"] for record in tried] == list(SHARES)
    lengths = [record["lengths"] for record in tried]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 4  # all of them
    for record in tried:
        translator.change_decoding(length_share=record["length_share"])
        assert scores(translator, validation)["score"] == pytest.approx(record["bleu"])
    choose_share(translator, validation)
    chosen = SHARES.index(float(str(translator.decoding["length_share"])))
    for record in tried:
        doublings = math.log2(record["lengths"] / tried[chosen]["lengths"])
        assert record["bleu"] - tried[chosen]["bleu"] <= WORTH * doublings + 1e-9
    monkeypatch.setattr(exporting, "WORTH", 100.0)
    choose_share(translator, validation)
    assert translator.decoding["length_share"] == 1
    monkeypatch.setattr(exporting, "WORTH", 0.0)
    choose_share(translator, validation)
    chosen = SHARES.index(float(str(translator.decoding["length_share"])))
    assert tried[chosen]["bleu"] == max(record["bleu"] for record in tried)


def test_decoding_is_chosen_where_the_validation_text_is(run: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    for model in (run, run / "model"):
        translator = Translator.from_pretrained(run)
        assert choose_cpu_decoding(translator, str(model), Console(file=said, width=200))
    assert "chosen on validation: " in said.getvalue()
    translator.change_decoding(length_candidates=1, length_share=0)
    assert not choose_cpu_decoding(translator, str(run), Console(file=said))  # there is no choice
    assert translator.decoding["length_share"] == 0
    saved = tmp_path / "saved"
    translator = Translator.from_pretrained(run)
    translator.save_pretrained(saved)
    assert not choose_cpu_decoding(translator, str(saved), Console(file=said))
    assert translator.decoding["length_share"] == 0


def test_what_depended_on_samples_is_chosen_anew(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_small(settings_of(data, run, model__system="ctc", train__steps=10))
    translator = Translator.from_pretrained(run)
    translator.change_decoding(method="greedy", bonus=3.0)
    with_bonus = translator.decoding
    translator.change_decoding(method="samples")
    with pytest.warns(UserWarning, match="has no method: samples; it is exported with method: gre"):
        assert choose_cpu_decoding(translator, str(run), Console(quiet=True))
    validation = validation_of(translator, str(run))
    assert validation
    assert translator.decoding["method"] == "greedy"
    chosen = scores(translator, validation)["score"]
    translator.change_decoding(**with_bonus)
    assert chosen >= scores(translator, validation)["score"]
    assert not choose_cpu_decoding(translator, str(run), Console(quiet=True))  # nothing to change
    assert translator.decoding == with_bonus


@pytest.mark.parametrize(("system", "option"), [("ctc", "bonus"), ("dag", "length_penalty")])
def test_ngrams_are_weighed_on_validation_text(
    system: str, option: str, data: Path, tmp_path: Path
) -> None:
    run, ngrams = tmp_path / "run", tmp_path / "lm"
    train_small(settings_of(data, run, model__system=system, train__steps=10))
    translator, targets = Translator.from_pretrained(run), Corpus.open(data, "train").targets
    vocab_size = translator.subwords.vocab_size
    save_ngrams(ngrams, estimate(targets, vocab_size, 3), translator.subwords)
    assert choose_cpu_decoding(translator, str(run), Console(quiet=True), ngrams)
    assert translator.decoding["method"] == "beam"
    validation = validation_of(translator, str(run))
    assert validation
    chosen = scores(translator, validation)["score"]
    own, weight = translator.decoding[option], translator.decoding["lm_weight"]
    usual = {"bonus": 0.0, "length_penalty": 1.0}[option]
    for changes in ({option: usual, "lm_weight": 0.3}, {option: own, "lm_weight": 0.0},
                    {option: usual, "lm_weight": weight}):  # fmt: skip
        translator.change_decoding(**changes)
        assert chosen >= scores(translator, validation)["score"]
    export(translator, tmp_path / "cpu", int8=True)
    found = Translator.from_pretrained(tmp_path / "cpu").decoding
    assert found["lm"] == str(tmp_path / "cpu" / "ngrams")
