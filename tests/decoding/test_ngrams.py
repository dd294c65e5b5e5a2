"""N-grams from the training text, in the beam search of a translator."""

from pathlib import Path

import pytest
import torch

from oaxe.commands.app import app
from oaxe.search.ngrams import LanguageModel
from oaxe.search.replay import Replays
from oaxe.support.errors import UserError
from oaxe.text.corpus import Corpus, load_subwords
from oaxe.text.ngram_files import load_ngrams, read_arpa, save_ngrams
from oaxe.text.ngrams import estimate
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import EOS
from tests.cli import printed
from tests.decoding.samples import SENTENCES, translator
from tests.runs import make_data
from tests.search.fluency import fluency_of, small_ngrams
from tests.search.test_replay import emulated  # noqa: F401

TEXTS = [sentence for sentence in SENTENCES if sentence.strip()]


@pytest.fixture
def folder(subwords: Subwords, tmp_path: Path) -> Path:
    """That knows other words than a model of random weights would say."""
    save_ngrams(tmp_path / "lm", small_ngrams(subwords.vocab_size), subwords)
    return tmp_path / "lm"


@pytest.mark.parametrize("system", ["ctc", "dag"])
def test_translations_are_more_fluent_the_higher_the_weight(
    system: str, subwords: Subwords, folder: Path
) -> None:
    model, lm = translator(subwords, system), LanguageModel(load_ngrams(folder))
    plain = model.translate_scored(TEXTS, method="beam")
    fluencies = []
    for weight in (0.0, 0.5, 5.0):
        found = model.translate_scored(TEXTS, method="beam", lm=str(folder), lm_weight=weight)
        texts = [best.tokens for best, *_ in found]
        fluencies.append(sum(fluency_of(lm, text) / (1 + len(text)) for text in texts))
        for (best, *_), (before, *_) in zip(found, plain, strict=True):
            asked = weight * fluency_of(lm, best.tokens)
            length = 1 + len(best.tokens) if system == "dag" else best.length
            assert best.score == pytest.approx((best.log_probability + asked) / length, rel=1e-3)
            if weight == 0:
                assert best.tokens == before.tokens
    assert fluencies[0] < fluencies[1] < fluencies[2]
    others = model.translate_scored(TEXTS, lm=str(folder), lm_weight=9.0)  # no beam: nobody asks
    assert [t[0].score for t in others] == [t[0].score for t in model.translate_scored(TEXTS)]


@pytest.mark.parametrize("system", ["ctc", "dag"])
@pytest.mark.usefixtures("emulated")
def test_replayed_it_is_the_same(system: str, subwords: Subwords, folder: Path) -> None:
    model = translator(subwords, system)
    how = model.decoding_with(method="beam", lm=str(folder))
    replays = Replays(model.system)
    for text in TEXTS[:3]:
        given = torch.tensor([[*subwords.encode([text])[0], EOS]])
        ours, theirs = (model.system.translate(given, how, *call)[0][0] for call in ([replays], []))
        assert ours.tokens == theirs.tokens
        assert ours.score == pytest.approx(theirs.score, rel=1e-4)


def test_n_grams_of_others_are_refused(subwords: Subwords, tmp_path: Path) -> None:
    model = translator(subwords, "dag")
    with pytest.raises(UserError, match=r"holds no n-grams; make some with 'oaxe ngrams"):
        model.translate(TEXTS, method="beam", lm=str(tmp_path / "none"))
    save_ngrams(tmp_path / "lm", small_ngrams(12), subwords)
    with pytest.raises(UserError, match=r"are of 12 subwords, the model has 60"):
        model.translate(TEXTS, method="beam", lm=str(tmp_path / "lm"))


def test_the_command(tmp_path: Path) -> None:
    data, lm = make_data(tmp_path), tmp_path / "lm"

    def ngrams(*arguments: object) -> str:
        return printed(app, "ngrams", data, *arguments).replace("\n", "")

    text = ngrams("-o", lm, "--order", 3, "--prune", "0,0,1", "--to-arpa", tmp_path / "lm.arpa")
    subwords = load_subwords(data)
    targets = Corpus.open(data, "train").targets
    expected = estimate(targets, subwords.vocab_size, 3, [0, 0, 1])
    for ours, theirs in zip(load_ngrams(lm).orders, expected.orders, strict=True):
        assert all((vars(ours)[name] == array).all() for name, array in vars(theirs).items())
    assert f"{len(expected.orders[2].keys):,} of order 3; use them with:" in text
    ngrams("-o", tmp_path / "again", "--arpa", tmp_path / "lm.arpa")
    again = read_arpa(tmp_path / "lm.arpa", subwords)
    assert len(again.orders[2].keys) == len(load_ngrams(tmp_path / "again").orders[2].keys) > 0
    with pytest.raises(UserError, match="--prune wants whole numbers"):
        ngrams("-o", lm, "--prune", "one")
    with pytest.raises(UserError, match="must not fall"):
        ngrams("-o", lm, "--prune", "0,2,1")
