"""What every decoder returns, and the symbols that none of them may say."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from oaxe.text.symbols import BLANK, BOS, EOS, LENGTH, MASK, PAD, UNK


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # ready to be joined into text: no special symbols
    score: float  # log-probability, normalised by length
    length: int  # places of the decoder, before repeats and blanks were removed


@cache  # a copy to a GPU waits, and a CUDA graph cannot make one
def forbidden(device: torch.device, *allowed: int) -> Tensor:
    """Ids of the special symbols, except those allowed.

    None of them stands for text: where the model says UNK or MASK, its best word is a better
    answer than the hole that would be left. PAD, BOS, MASK and LENGTH are never targets, so their
    probability is noise; EOS ends a sentence only where no length is predicted.
    """
    symbols = (PAD, BOS, EOS, UNK, MASK, BLANK, LENGTH)
    return torch.tensor([s for s in symbols if s not in allowed], device=device)
