"""BLEU and chrF, by sacreBLEU: of a whole output, for each reference, and by length."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from oaxe.evaluation.gold import Gold
from oaxe.support.errors import UserError
from oaxe.text.languages import bleu_tokenizer, words

LENGTHS = (10, 20, 30, 40, 50)  # the most words of a bucket; one more bucket has the rest


@dataclass(frozen=True)
class Metrics:
    """sacreBLEU's metrics; the n-grams of the references are counted once for all systems."""

    bleu: BLEU
    chrf: CHRF
    tokenizer: str  # of BLEU
    lowercase: bool


def metrics_for(gold: Gold, *, lowercase: bool = False) -> Metrics:
    references, tokenizer = _streams(gold.references), bleu_tokenizer(gold.language)
    # force: no warning of text that looks tokenized for each of many scores.
    bleu = BLEU(lowercase, force=True, tokenize=tokenizer, references=references)
    chrf = CHRF(lowercase=lowercase, references=references)
    return Metrics(bleu, chrf, tokenizer, lowercase)


def bleu(metrics: Metrics, output: Sequence[str]) -> dict[str, Any]:
    """The score against all references, with what it is made of."""
    score = metrics.bleu.corpus_score(output, None)
    return {
        "score": score.score,
        "signature": str(metrics.bleu.get_signature()),
        "precisions": score.precisions,
        "brevity_penalty": score.bp,
        "output_length": score.sys_len,
        "reference_length": score.ref_len,
    }


def chrf(metrics: Metrics, output: Sequence[str]) -> dict[str, Any]:
    score = metrics.chrf.corpus_score(output, None)
    return {"score": score.score, "signature": str(metrics.chrf.get_signature())}


def single_reference_bleu(metrics: Metrics, gold: Gold, output: Sequence[str]) -> dict[str, Any]:
    """BLEU against one reference of each sentence, for each of them in turn, and the mean.

    The k-th score takes the k-th reference of each sentence. A sentence that has fewer begins again
    with its first, so that every score is of the whole test set.
    """
    scores = [
        _bleu_against(metrics, output, [[refs[k % len(refs)] for refs in gold.references]])
        for k in range(gold.most)
    ]
    return {"mean": sum(scores) / len(scores), "scores": scores}


def bleu_by_length(
    metrics: Metrics, gold: Gold, output: Sequence[str], limits: Sequence[int] = LENGTHS
) -> list[dict[str, Any]]:
    """BLEU of the sentences whose first reference has up to 10 words, 11 to 20, and so on."""
    lengths = [len(words(reference, gold.language)) for reference in gold.first]
    buckets = []
    for below, most in pairwise([-1, *limits, None]):
        assert below is not None
        inside = [i for i, n in enumerate(lengths) if n > below and (most is None or n <= most)]
        references = _streams([gold.references[i] for i in inside])
        chosen = [output[i] for i in inside]
        buckets.append(
            {
                "label": _label(below, most),
                "least": below + 1,
                "most": most,
                "sentences": len(inside),
                "bleu": _bleu_against(metrics, chosen, references) if inside else None,
            }
        )
    return buckets


def lengths_of(text: str) -> list[int]:
    """``"10,20,30"`` as numbers that grow."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or found[0] < 1 or any(a >= b for a, b in pairwise(found)):
        raise UserError(f"--lengths must be numbers that grow, such as 10,20,30; got {text!r}")
    return found


def _label(below: int, most: int | None) -> str:
    if most is None:
        return f"over {below}"
    return f"{below + 1}-{most}" if below >= 0 else f"up to {most}"


def _bleu_against(metrics: Metrics, output: Sequence[str], references: list[list[Any]]) -> float:
    bleu = BLEU(metrics.lowercase, force=True, tokenize=metrics.tokenizer)
    return float(bleu.corpus_score(output, references).score)


def _streams(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """One list a reference, as sacreBLEU wants them; None where a sentence has fewer."""
    most = max(map(len, references), default=0)
    return [[refs[k] if k < len(refs) else None for refs in references] for k in range(most)]
