"""NCM, normalised corpus-level multimodality: how uncertain a model is of its own outputs."""

from collections.abc import Sequence

from oaxe.decoding.translator import Translation


def ncm(translations: Sequence[Translation]) -> float:
    """NCM = E[-log P(Y|X)] / E[|Y|], over the outputs Y of a one-pass model.

    P(Y|X) is the product over the positions of the pass that produced Y, at the predicted length
    (without the probability of that length), over the subwords that may be output. |Y| is the
    number of positions, before de-duplication. Natural logarithm; 0 is a model without doubt.
    Only the best translation of each sentence counts.
    """
    log_probability = sum(t.log_probability for t in translations)
    return -log_probability / max(sum(t.length for t in translations), 1)
