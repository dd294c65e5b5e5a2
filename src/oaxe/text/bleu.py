"""Corpus BLEU by sacreBLEU, with the tokenizer of the target language."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from oaxe.text.languages import bleu_tokenizer


def bleu_metric(language: str, *, lowercase: bool = False) -> BLEU:
    """sacreBLEU's metric, without its warning about text that looks tokenized (force)."""
    return BLEU(lowercase, force=True, tokenize=bleu_tokenizer(language))


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[Any]],
    language: str,
    *,
    lowercase: bool = False,
) -> dict[str, Any]:
    """BLEU of detokenized hypotheses, from 0 to 100, with its parts and sacreBLEU's signature.

    Args:
        references: lists as long as the hypotheses, None where a sentence has fewer references.

    Example:
        >>> found = corpus_bleu(["a small dog runs"], [["a small dog runs fast"]], "en")
        >>> round(found["score"], 1), round(found["brevity_penalty"], 3)
        (77.9, 0.779)
    """
    metric = bleu_metric(language, lowercase=lowercase)
    score = metric.corpus_score(hypotheses, references)
    return {
        "score": score.score,
        "signature": str(metric.get_signature()),
        "precisions": score.precisions,
        "brevity_penalty": score.bp,
        "output_length": score.sys_len,
        "reference_length": score.ref_len,
    }
