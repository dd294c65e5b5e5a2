"""How many words a target has, predicted before any of them, for models that need to know."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.model.masking import IGNORED
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded, Transformer
from oaxe.text.symbols import LENGTH, PAD


class LengthPredictor(nn.Module):
    """A LENGTH symbol goes in front of the source; its final state is classified.

    Args:
        dim: of the Transformer.
        max_length: of the Transformer; class n is a target of n tokens.
    """

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.output = nn.Linear(dim, max_length + 1)

    def encode(self, transformer: Transformer, source: Tensor) -> tuple[Encoded, Tensor]:
        """The encoded source with LENGTH, and logits ``(batch, max_length + 1)``."""
        symbol = torch.where(source[:, :1] == PAD, PAD, LENGTH)  # nothing for an empty row
        encoded = transformer.encode(torch.cat([symbol, source], dim=1))
        return encoded, self.output(encoded.first)

    def loss(self, logits: Tensor, length: Tensor) -> tuple[Tensor, Statistics]:
        return length_loss(logits, length)


def length_loss(logits: Tensor, length: Tensor) -> tuple[Tensor, Statistics]:
    """The summed cross entropy of ``length (batch,)``, and how many lengths are right.

    A length of IGNORED is that of no sentence.
    """
    logits = logits.float()
    loss = F.cross_entropy(logits, length, ignore_index=IGNORED, reduction="sum")
    right, sentences = (logits.argmax(-1) == length).sum(), (length != IGNORED).sum()
    return loss, {"length_loss": (loss, sentences), "length_accuracy": (right, sentences)}


def likely_lengths(logits: Tensor, source_mask: Tensor, candidates: int) -> Tensor:
    """``(batch, candidates)``: the most likely lengths, most likely first; 0 is not among them.

    Nor is a length of more than twice the source and 10, as in beam search: one such candidate
    would make the whole batch as wide.
    """
    logits = logits[:, 1:]  # class 0 would be a sentence without words
    longest = 2 * (source_mask.sum(1, keepdim=True) - 2) + 10  # LENGTH and EOS do not count
    length = torch.arange(1, logits.shape[1] + 1, device=logits.device)
    logits = logits.masked_fill(length > longest, float("-inf"))
    found = logits.topk(min(candidates, logits.shape[1]), dim=1).indices + 1
    return torch.minimum(found, longest)


def likely_enough(logits: Tensor, lengths: Tensor, share: float) -> Tensor:
    """``(batch,)``: how many lengths have at least this share of the probability of the first.

    Args:
        logits: ``(batch, max_length + 1)``.
        lengths: ``(batch, candidates)``, most likely first.
        share: above 0; 0 is taken for next to nothing.

    Example:
        >>> logits = torch.tensor([[0.0, 0.7, 0.2, 0.1]]).log()
        >>> likely_enough(logits, torch.tensor([[1, 2, 3]]), 0.25)
        tensor([2])
    """
    log_probs = logits.gather(1, lengths)
    return (log_probs >= log_probs[:, :1] + math.log(share or 1e-30)).sum(1)


def with_length_in_front(positions: Tensor) -> Tensor:
    """Position embeddings of a source without LENGTH, moved by one for a source that has it."""
    return torch.cat([positions[:1], positions[:-1]])
