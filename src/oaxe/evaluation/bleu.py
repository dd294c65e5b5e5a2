"""BLEU against all references, against each of them alone, and by sentence length."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from oaxe.evaluation.references import References
from oaxe.support.errors import UserError
from oaxe.text.bleu import corpus_bleu
from oaxe.text.languages import words

LENGTHS = (10, 20, 30, 40, 50)  # the most words of each bucket; one more bucket has the rest


def bleu(references: References, output: Sequence[str], lowercase: bool = False) -> dict[str, Any]:
    """BLEU against all references, see :func:`corpus_bleu`."""
    return corpus_bleu(output, references.streams, references.language, lowercase=lowercase)


def single_reference_bleu(
    references: References, output: Sequence[str], lowercase: bool = False
) -> dict[str, Any]:
    """BLEU against the k-th reference of each sentence, for each k, and the mean of these.

    A sentence with fewer references starts again with its first, so that every score is of the
    whole test set.
    """
    scores = []
    for k in range(references.most):
        alone = replace(references, texts=[[refs[k % len(refs)]] for refs in references.texts])
        scores.append(bleu(alone, output, lowercase)["score"])
    return {"mean": sum(scores) / len(scores), "scores": scores}


def bleu_by_length(
    references: References,
    output: Sequence[str],
    limits: Sequence[int] = LENGTHS,
    lowercase: bool = False,
) -> list[dict[str, Any]]:
    """BLEU of the sentences whose first reference has up to 10 words, 11 to 20, and so on."""
    lengths = [len(words(text, references.language)) for text in references.first]
    buckets = []
    for least, most in zip([0, *(n + 1 for n in limits)], [*limits, None], strict=True):
        inside = [i for i, n in enumerate(lengths) if least <= n and (most is None or n <= most)]
        some = replace(references, texts=[references.texts[i] for i in inside])
        found = bleu(some, [output[i] for i in inside], lowercase) if inside else {"score": None}
        label = f"{least}-{most}" if least else f"up to {most}"
        buckets.append(
            {
                "label": f"over {least - 1}" if most is None else label,
                "least": least,
                "most": most,
                "sentences": len(inside),
                "bleu": found["score"],
            }
        )
    return buckets


def parse_lengths(text: str) -> list[int]:
    """``"10,20,30"`` as increasing numbers."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or found[0] < 1 or any(a >= b for a, b in pairwise(found)):
        raise UserError(f"--lengths must be increasing numbers, such as 10,20,30; got {text!r}")
    return found
