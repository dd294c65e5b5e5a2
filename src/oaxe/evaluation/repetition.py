"""Repetition: tokens that equal the token before them, a sign of mixed-up translations."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TypeVar

T = TypeVar("T")


def repeats(tokens: Sequence[object]) -> list[bool]:
    """True for a token that equals the one before it.

    Example:
        >>> repeats("at baggage baggage charges".split())
        [False, False, True, False]
    """
    return [False] * bool(tokens) + [before == token for before, token in pairwise(tokens)]


def collapsed(tokens: Sequence[T]) -> list[T]:
    """De-duplication: the tokens without those that equal the one before them.

    Example:
        >>> collapsed("charges charges and charges".split())
        ['charges', 'and', 'charges']
    """
    return [token for token, _ in groupby(tokens)]


def repeated_percent(sentences: Iterable[Sequence[object]]) -> float:
    """Percent of all tokens that equal the token before them in their sentence.

    Example:
        >>> repeated_percent(["a a b b b".split(), "c d c".split()])
        37.5
    """
    flags = [flag for tokens in sentences for flag in repeats(tokens)]
    return 100 * sum(flags) / max(len(flags), 1)
