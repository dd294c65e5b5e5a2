"""Repeated tokens: what a model says twice where it cannot decide between two translations."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")


def collapsed(tokens: Sequence[T]) -> list[T]:
    """The tokens without those that equal the one before them: de-duplication.

    Example:
        >>> collapsed("charges charges and charges".split())
        ['charges', 'and', 'charges']
    """
    return [token for token, _ in groupby(tokens)]


def repeated_percent(sentences: Iterable[Sequence[object]]) -> float:
    """Of all tokens, those that equal the token before them in their sentence.

    Example:
        >>> repeated_percent(["a a b b b".split(), "c d c".split()])
        37.5
    """
    total = repeated = 0
    for tokens in sentences:
        total += len(tokens)
        repeated += len(tokens) - len(collapsed(tokens))
    return 100 * repeated / max(total, 1)
