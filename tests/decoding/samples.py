"""Sentences, and translators of random weights for them."""

from typing import Any

from oaxe.decoding.translator import Translator
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
