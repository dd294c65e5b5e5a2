"""Perplexity under a language model, and the training of one."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from oaxe.decoding.likelihood import log_likelihoods
from oaxe.decoding.translator import Translator
from oaxe.evaluation.fluency import perplexity
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import BOS, EOS
from tests.evaluation.samples import SOURCES, load, run, translator
from tests.runs import make_data, metrics, settings_of, train_on_ranks, train_small


def next_log_probability(model: Translator, prefix: Sequence[int], token: int) -> float:
    """One word after a prefix, by a pass of its own over the whole prefix."""
    with torch.no_grad():
        transformer, inputs = model.system.transformer, torch.tensor([[BOS, *prefix]])
        encoded = transformer.encode(torch.tensor([[EOS]]))
        logits = transformer.logits(transformer.decode(inputs, inputs > 0, encoded))
    return float(logits[0, -1].double().log_softmax(-1)[token])


def test_perplexity_word_by_word(folder: Path) -> None:
    lm = Translator.from_pretrained(folder / "language_model")
    assert not lm.system.translates
    texts = ["the dog runs", "a boat", "", "the green green field"]
    expected = []
    for tokens in lm.subwords.encode(texts):
        whole = [*tokens, EOS]
        expected.append(
            sum(next_log_probability(lm, whole[:n], token) for n, token in enumerate(whole))
        )
    for batch_tokens in (1, 20, 1000):
        each = log_likelihoods(lm, lm.subwords.encode(texts), batch_tokens=batch_tokens)
        assert each == pytest.approx(expected, rel=1e-4)
    found = perplexity(lm, texts, "en")
    assert found["words"] == 3 + 2 + 0 + 4 + 4  # and four ends
    assert found["perplexity"] == pytest.approx(math.exp(-sum(expected) / 13), rel=1e-4)
    assert found["unknown_subwords"] == 0
    assert perplexity(lm, ["ж"], "en")["unknown_subwords"] == 1


def test_perplexity_cuts_long_sentences(subwords: Subwords) -> None:
    lm = translator(subwords, "language_model", max_length=4)
    (tokens,) = subwords.encode([SOURCES[0]])
    start = subwords.decode([tokens[:4]])[0]
    found, short = (perplexity(lm, [text], "en") for text in (SOURCES[0], start))
    assert found["cut_sentences"] == 1
    assert short["cut_sentences"] == 0
    assert found["words"] == short["words"] == len(start.split()) + 1
    (direct,) = log_likelihoods(lm, [tokens[:4]])
    assert found["perplexity"] == pytest.approx(math.exp(-direct / found["words"]))


def test_train_a_language_model(tmp_path: Path) -> None:
    """Trained like any other, chosen by the probability of held-out text; it does not translate."""
    data = make_data(tmp_path / "digits")
    changes = {"model__system": "language_model", "train__steps": 40, "validation__every": 10}
    result, printed = train_small(settings_of(data, tmp_path / "lm", **changes))
    validations = [r for r in metrics(tmp_path / "lm") if r["what"] == "valid"]
    scores = [record["log_probability"] for record in validations]
    assert len(scores) == 4
    assert scores[-1] > scores[0]
    assert "oaxe evaluate --lm" in printed
    lm = Translator.from_pretrained(tmp_path / "lm" / "model")
    lines = (data / "valid.target.txt").read_text().splitlines()
    tokens = lm.subwords.encode(lines)
    direct = [
        next_log_probability(lm, whole[:n], token)
        for whole in ([*row, EOS] for row in tokens)
        for n, token in enumerate(whole)
    ]
    assert result["log_probability"] == pytest.approx(sum(direct) / len(direct), rel=1e-4)
    assert result["log_probability"] >= max(scores)
    with pytest.raises(UserError, match="a language model, which cannot translate"):
        lm.translate(["1 2"])
    given = "--data", data, "--split", "valid", "--hyp", data / "valid.target.txt"
    run(*given, "--device", "cpu", "--lm", tmp_path / "lm", "--json", tmp_path / "s.json")
    found = load(tmp_path / "s.json")
    n_words = sum(len(line.split()) + 1 for line in lines)
    expected = math.exp(-sum(direct) / n_words)
    assert found["gold"]["fluency"]["perplexity"] == pytest.approx(expected, rel=1e-4)
    once = [" ".join(w for b, w in pairwise(["", *line.split()]) if w != b) for line in lines]
    assert once != lines
    assert found["fluency"] == perplexity(lm, once, "bb")  # de-duplicated, as in the paper
    assert found["language"] == "bb"
    assert found["bleu"]["score"] == pytest.approx(100)


def test_language_model_on_two_ranks(tmp_path: Path) -> None:
    data = make_data(tmp_path / "digits", valid=7)
    changes = {
        "model__system": "language_model",
        "train__steps": 4,
        "validation__every": 2,
        "model__dropout": 0.0,
    }
    alone, _ = train_small(settings_of(data, tmp_path / "one", **changes))
    assert train_on_ranks(settings_of(data, tmp_path / "two", **changes)) == ["", ""]
    together = load(tmp_path / "two" / "result.json")
    assert together["log_probability"] == pytest.approx(alone["log_probability"], rel=1e-4)
