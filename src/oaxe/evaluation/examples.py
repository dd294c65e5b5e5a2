"""Examples: the sentences where outputs differ most, and the words that an output lacks."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from oaxe.evaluation.chrf import sentence_chrf
from oaxe.evaluation.outputs import Output
from oaxe.evaluation.references import References


def examples(
    references: References, outputs: Sequence[Output], count: int, lowercase: bool = False
) -> list[dict[str, Any]]:
    """The sentences whose chrF differs most between outputs, or the worst of a single output."""
    if not count:
        return []
    scores = {o.name: sentence_chrf(references, o.scored, lowercase) for o in outputs}
    perfect = (100.0,) if len(outputs) == 1 else ()
    spread = [max(row + perfect) - min(row) for row in zip(*scores.values(), strict=True)]
    order = sorted(range(len(references)), key=lambda i: (-spread[i], i))[:count]
    return [
        {
            "line": i + 1,
            "source": None if references.sources is None else references.sources[i],
            "references": references.texts[i],
            "outputs": {output.name: output.scored[i] for output in outputs},
            "chrf": {output.name: scores[output.name][i] for output in outputs},
        }
        for i in order
    ]


def missing(output: Sequence[str], reference: Sequence[str]) -> list[str]:
    """Words that the reference has more often than the output, in order, without punctuation.

    Example:
        >>> missing("a dog, a cat".split(), "a dog and a cat and a mouse.".split())
        ['and', 'and', 'a', 'mouse']
    """
    left = Counter(map(_bare, output))
    found = []
    for word in map(_bare, reference):
        if left[word] > 0:
            left[word] -= 1
        elif word:
            found.append(word)
    return found


def _bare(word: str) -> str:
    """The word without punctuation at its ends."""
    return re.sub(r"^\W+|\W+$", "", word)
