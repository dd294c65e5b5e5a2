"""BLEU with the tokenizer of each language."""

import pytest
import sacrebleu

from oaxe.text import languages
from oaxe.text.bleu import corpus_bleu


@pytest.mark.parametrize(
    ("language", "mecab", "tokenizer", "unit"),
    [
        ("de", False, "13a", "words"),
        ("", False, "13a", "words"),
        ("zh-CN", False, "zh", "characters"),
        ("zh_TW", False, "zh", "characters"),
        ("ja", False, "char", "characters"),
        ("JA", True, "ja-mecab", "characters"),
        ("ko", False, "char", "words"),
        ("th", False, "char", "characters"),
        ("jpn", True, "ja-mecab", "characters"),
        ("x-ja", False, "13a", "words"),
    ],
)
def test_languages(
    language: str, mecab: bool, tokenizer: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(languages, "find_spec", lambda name: mecab or None)
    assert languages.bleu_tokenizer(language) == tokenizer
    assert languages.unit(language) == unit
    line = "a bb  c"
    found = languages.words(line, language)
    assert found == (["a", "bb", "c"] if unit == "words" else ["a", "b", "b", "c"])
    assert languages.joined(found, language) == ("a bb c" if unit == "words" else "abbc")


@pytest.mark.parametrize(("language", "tokenizer"), [("de", "13a"), ("zh-CN", "zh")])
def test_equals_sacrebleu(language: str, tokenizer: str) -> None:
    hypotheses = ["我们去学校。 The dog (runs) over there.", "今天天气好 and so on and on"]
    references = [["我们去学校。 A dog (runs) over there.", "今天天气很好 and so on and on."]]
    expected = sacrebleu.corpus_bleu(hypotheses, references, tokenize=tokenizer)
    found = corpus_bleu(hypotheses, references, language)
    assert 0 < found["score"] < 100
    assert found["score"] == expected.score
    assert found["precisions"] == expected.precisions
    assert f"tok:{tokenizer}|" in found["signature"]
