"""Sentences, and translators of random weights for them."""

from typing import Any

import pytest

from oaxe.decoding.translator import Translation, Translator
from oaxe.text.subwords import Subwords
from tests.models import micro

SENTENCES = [
    "a small dog runs over the green field",
    "two men",
    "",
    "the children play in the water near a big red boat while it rains",
    "   ",
    "a woman reads",
    "the dog sleeps in the old boat",
    "rain",
]

# Systems that translate, and an architecture of their own.
KINDS: dict[str, dict[str, Any]] = {
    "cmlm": {},
    "cmlm from both ends": {"positions": "both"},
    "ctc": {},
    "dag": {},
    "transformer": {},
}


def translator(subwords: Subwords, kind: str = "cmlm", **architecture: Any) -> Translator:
    options = {"max_length": 40, **KINDS.get(kind, {}), **architecture}
    system = micro(kind.split()[0], "pre", vocab_size=subwords.vocab_size, **options)
    return Translator(system, subwords, languages=("en", "xx"))


def check_same(
    found: list[list[Translation]], expected: list[list[Translation]], tolerance: float = 1e-5
) -> None:
    """The same text; scores up to rounding, which depends on where the weights lie in memory."""
    for name in ("text", "tokens", "length"):
        values = [[[getattr(t, name) for t in ts] for ts in both] for both in (found, expected)]
        assert values[0] == values[1]
    for name in ("score", "log_probability"):
        values = [[getattr(t, name) for ts in both for t in ts] for both in (found, expected)]
        assert values[0] == pytest.approx(values[1], abs=tolerance)
    positions = [[t.positions for ts in both for t in ts] for both in (found, expected)]
    for mine, wanted in zip(*positions, strict=True):
        if mine and wanted:  # torch does not know them of a walk step by step
            assert mine.tokens.tolist() == wanted.tokens.tolist()
            assert mine.log_probs == pytest.approx(wanted.log_probs, abs=tolerance)
            assert mine.fates() == wanted.fates()
