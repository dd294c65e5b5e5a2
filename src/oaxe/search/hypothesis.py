"""What every decoder returns, and the symbols that none of them may predict.

An exported model imports this, too: torch is loaded where it is needed.
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from oaxe.support.config import option
from oaxe.text.symbols import SYMBOLS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_LENGTH_PENALTY = 10  # with more, scores are too small to be told apart
LENGTH_PENALTIES = (0.5, 1.0, 1.5, 2.0, 3.0)  # worth trying


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # ready to be joined into text: no special symbols
    score: float  # log-probability, normalised by length
    length: int  # positions of the decoder, before repeats and blanks were removed
    log_probability: float = 0.0  # of all these positions


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
