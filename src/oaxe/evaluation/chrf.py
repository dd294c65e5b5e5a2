"""chrF by sacreBLEU: of a whole output and of its sentences."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.chrf import CHRF

from oaxe.evaluation.references import References


def chrf(references: References, output: Sequence[str], lowercase: bool = False) -> dict[str, Any]:
    metric = CHRF(lowercase=lowercase)
    score = metric.corpus_score(output, references.streams)
    return {"score": score.score, "signature": str(metric.get_signature())}


def sentence_chrf(
    references: References, output: Sequence[str], lowercase: bool = False
) -> list[float]:
    metric = CHRF(lowercase=lowercase)
    pairs = zip(output, references.texts, strict=True)
    return [float(metric.sentence_score(line, refs).score) for line, refs in pairs]
