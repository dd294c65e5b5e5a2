"""Normalised corpus-level multimodality: how unsure a model is of its own translations."""

from collections.abc import Sequence

from oaxe.decoding.translator import Translation


def ncm(translations: Sequence[Translation]) -> float:
    """NCM = E[-log P(Y|X)] / E[|Y|], over the outputs Y of a one-pass model.

    P(Y|X) is the product over the positions of the one pass that made Y, at the length that it
    chose (whose own probability is left out), over the words that may be predicted; |Y| is the
    number of these positions, before de-duplication. Natural logarithm; 0 is a model that is
    certain.

    Args:
        translations: the best of each sentence.
    """
    log_probability: float = sum(t.log_probability for t in translations)
    return -log_probability / max(sum(t.length for t in translations), 1)
