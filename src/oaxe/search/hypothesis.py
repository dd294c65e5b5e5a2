"""What every decoder returns, and the symbols that none of them may predict.

An exported model imports this, too: torch is loaded where it is needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from oaxe.support.config import option
from oaxe.text.symbols import BLANK, SYMBOLS

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

MOST_LENGTH_PENALTY = 10  # with more, scores are too small to be told apart
LENGTH_PENALTIES = (0.5, 1.0, 1.5, 2.0, 3.0)  # worth trying


Fate = Literal["kept", "blank", "repeat", "skipped"]


class Positions(NamedTuple):
    """What each position of the decoder says, in order: views of arrays that are there anyway.

    The first and the last vertex of a DAG say nothing: they are left out.
    """

    tokens: "NDArray[np.int64]"
    log_probs: "NDArray[np.float32]"
    kept: "Sequence[int] | NDArray[np.int64]"  # where each token of the hypothesis is, in order
    path: Sequence[int] | None = None  # of a DAG: the vertices that it visits; None: all

    def fates(self) -> list[Fate]:
        """What became of each position.

        Example:
            >>> import numpy as np
            >>> tokens = np.array([8, 8, BLANK, 9])
            >>> Positions(tokens, np.zeros(4, np.float32), kept=[0, 3]).fates()
            ['kept', 'repeat', 'blank', 'kept']
        """
        path = range(len(self.tokens)) if self.path is None else self.path
        fates: list[Fate] = ["skipped"] * len(self.tokens)
        for i in path:
            fates[i] = "blank" if self.tokens[i] == BLANK else "repeat"
        for i in self.kept:
            fates[i] = "kept"
        return fates


Said = Positions | Callable[[], Positions] | None  # known, found out when asked for, or unknown


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # ready to be joined into text: no special symbols
    score: float  # log-probability, normalised by length
    length: int  # positions of the decoder, before repeats and blanks were removed
    log_probability: float = 0.0  # of all these positions
    said: Said = field(default=None, compare=False, repr=False)

    @property
    def positions(self) -> Positions | None:
        """None: the decoder does not know what each of them says, or would have to ask a GPU."""
        return self.said() if callable(self.said) else self.said


def special(*allowed: int) -> list[int]:
    """Ids of the special symbols, except those allowed.

    None of them stands for text: where the model predicts UNK or MASK, its best word is a better
    answer than the hole that would be left. PAD, BOS, MASK and LENGTH are never targets, so their
    probability is noise; EOS ends a sentence only where no length is predicted.
    """
    return [symbol for symbol in range(len(SYMBOLS)) if symbol not in allowed]


@cache  # a copy to a GPU waits, and a CUDA graph cannot make one
def forbidden(device: "torch.device", *allowed: int) -> "Tensor":
    """The same on a device."""
    import torch

    return torch.tensor(special(*allowed), device=device)


def length_penalty() -> Any:
    """The option of every decoder whose scores are normalised by length."""
    return option(
        1.0,
        "scores are log-probabilities over the length to this power",
        at_most=MOST_LENGTH_PENALTY,
    )
