"""The task: a source is a random number sequence, its target one of five orderings of it.

    Direct           1 3 10 7 9 2
    Reverse          2 9 7 10 3 1
    Flip             7 9 2 1 3 10       the halves are exchanged
    Flip-Right-Rev   7 9 2 10 3 1       and its right half is reversed
    Flip-Left-Rev    2 9 7 1 3 10       and its left half is reversed

The paper does not define the halves of an odd length. Here the middle number belongs to the left
half, so that Direct, Reverse and Flip-Right-Rev all leave it in the middle. In the right half, two
numbers would be nearly equally likely in the middle (0.48 to 0.52 with five orders), and models
would find orders for odd lengths that are none of the five.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oaxe.text.corpus import Corpus, Sentences
from oaxe.text.symbols import SYMBOLS

Positions = NDArray[np.int64]

ORDERINGS = ("Direct", "Reverse", "Flip", "Flip-Right-Rev", "Flip-Left-Rev")

# How often each of the first n orderings is the target (the paper's appendix).
PROBABILITIES = {
    1: (1.0,),
    2: (0.53, 0.47),
    3: (0.23, 0.44, 0.33),
    4: (0.17, 0.28, 0.14, 0.41),
    5: (0.14, 0.25, 0.13, 0.39, 0.09),
}
SPLITS = ("train", "valid", "test")


def source_positions(
    ordering: int | Positions, position: int | Positions, n: int | Positions
) -> Positions:
    """The source position that a target position copies; arrays broadcast."""
    half = (n + 1) // 2  # the length of the source's left half
    mirrored = n - 1 - np.asarray(position)
    flipped = (np.asarray(position) + half) % n
    left = position < n - half  # of the target: the source's right half
    rules = [
        np.asarray(position),
        mirrored,
        flipped,
        np.where(left, flipped, mirrored),
        np.where(left, mirrored, flipped),
    ]
    return np.choose(ordering, rules)


def reorder(numbers: list[int], ordering: int) -> list[int]:
    """
    Example:
        >>> reorder([1, 3, 10, 7, 9, 2], ORDERINGS.index("Flip"))
        [7, 9, 2, 1, 3, 10]
    """
    n = len(numbers)
    return [numbers[position] for position in source_positions(ordering, np.arange(n), n)]


@dataclass(frozen=True)
class Task:
    """What the data are drawn from.

    Args:
        modes: how many of the orderings are targets, 1 to 5.
        numbers: how many different numbers there are.
        shortest, longest: of a sequence; lengths are uniform between them.
        train, valid, test: pairs.
    """

    modes: int
    numbers: int
    shortest: int
    longest: int
    train: int
    valid: int
    test: int

    def __post_init__(self) -> None:
        if self.modes not in PROBABILITIES:
            raise ValueError(f"modes must be 1 to {len(ORDERINGS)}, got {self.modes}")
        if self.numbers < 2 or not 1 <= self.shortest <= self.longest:
            raise ValueError(
                "a task needs at least 2 numbers and 1 <= shortest <= longest; "
                f"got {self.numbers}, {self.shortest} and {self.longest}"
            )

    @property
    def vocab_size(self) -> int:
        return len(SYMBOLS) + self.numbers

    def corpus(self, split: str, seed: int) -> Corpus:
        """Token ids of a split. Its draws do not depend on the other splits or their sizes."""
        rng = np.random.default_rng([seed, SPLITS.index(split)])
        pairs = int(getattr(self, split))
        lengths = rng.integers(self.shortest, self.longest, pairs, endpoint=True)
        chances = np.array(PROBABILITIES[self.modes])
        ordering = rng.choice(self.modes, pairs, p=chances / chances.sum())
        offsets = np.concatenate([[0], lengths.cumsum()])
        tokens = rng.integers(len(SYMBOLS), self.vocab_size, offsets[-1], dtype=np.int32)
        first, n, chosen = (np.repeat(x, lengths) for x in (offsets[:-1], lengths, ordering))
        position = np.arange(offsets[-1]) - first
        target = tokens[first + source_positions(chosen, position, n)]
        return Corpus(Sentences(tokens, offsets), Sentences(target, offsets))

    def orders(self, numbers: list[int]) -> dict[str, list[int]]:
        """Every right answer."""
        return {ORDERINGS[mode]: reorder(numbers, mode) for mode in range(self.modes)}
