"""Normalised corpus-level multimodality: how unsure a model is of its own translations."""

from collections.abc import Sequence

from oaxe.decoding.translator import Translation


def ncm(translations: Sequence[Translation], length_penalty: float = 1.0) -> float:
    """NCM = E[-log P(Y|X)] / E[|Y|], over the outputs Y of a model that says all words at once.

    P(Y|X) is the product over the places of the one pass that made Y, at the length that it chose
    (whose own probability is left out), over the words that may be said; |Y| counts these places,
    before de-duplication. Natural logarithm; 0 is a model that is certain.

    Args:
        translations: of each sentence the best.
        length_penalty: that they were decoded with: the score is the log-probability over the
            places to this power.
    """
    log_probability: float = sum(t.score * t.length**length_penalty for t in translations)
    return -log_probability / max(sum(t.length for t in translations), 1)


def why_not(kind: str) -> str | None:
    """The reason why a model of this kind has no NCM."""
    return {
        "nat": None,
        "at": "it chooses word by word, each after having seen those before",
        "ctc": "its output is the sum of many alignments, of which decoding sees one",
    }[kind]
