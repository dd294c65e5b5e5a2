"""Outputs beside each other: where systems differ most, what they repeat, what they leave out."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sacrebleu.metrics.chrf import CHRF

from oaxe.evaluation.gold import Gold
from oaxe.evaluation.scores import Metrics
from oaxe.evaluation.systems import System


def examples(
    metrics: Metrics, gold: Gold, systems: Sequence[System], count: int
) -> list[dict[str, Any]]:
    """The sentences whose chrF differs most between systems; of one system, the worst."""
    chrf = CHRF(lowercase=metrics.lowercase)  # its own: each score changes the signature
    scores = {
        system.name: [
            chrf.sentence_score(output, references).score
            for output, references in zip(system.output, gold.references, strict=True)
        ]
        for system in systems
    }
    by_sentence = list(zip(*scores.values(), strict=True))
    perfect = (100.0,) if len(systems) == 1 else ()
    spread = [max(row + perfect) - min(row) for row in by_sentence]
    order = sorted(range(len(gold)), key=lambda i: (-spread[i], i))[:count]
    return [
        {
            "line": i + 1,
            "source": None if gold.sources is None else gold.sources[i],
            "references": gold.references[i],
            "outputs": {system.name: system.output[i] for system in systems},
            "chrf": {system.name: scores[system.name][i] for system in systems},
        }
        for i in order
    ]


def repeats(words: Sequence[str]) -> list[bool]:
    """True for a word that equals the one before it.

    Example:
        >>> repeats("at baggage baggage charges".split())
        [False, False, True, False]
    """
    return [False] * bool(words) + [before == word for before, word in pairwise(words)]


def missing(output: Sequence[str], reference: Sequence[str]) -> list[str]:
    """Words that the reference has more often than the output, in its order, without punctuation.

    Example:
        >>> missing("a dog, a cat".split(), "a dog and a cat and a mouse.".split())
        ['and', 'and', 'a', 'mouse']
    """
    left = Counter(bare(word) for word in output)
    found = []
    for word in map(bare, reference):
        if left[word] > 0:
            left[word] -= 1
        elif word:
            found.append(word)
    return found


def bare(word: str) -> str:
    """Without punctuation at its ends."""
    return re.sub(r"^\W+|\W+$", "", word)
