"""What the decoder reads while it is trained, and the tokens that the loss is computed over.

All functions take right-padded token ids and return right-padded inputs (PAD stays PAD, so
``inputs != PAD`` is the decoder's mask) and targets with IGNORED where there is no loss.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.text.symbols import BOS, EOS, MASK, PAD

IGNORED = -100  # the default ignore_index of the losses

Masking = Literal["unobserved", "partial-all", "partial-masks"]


def decoder_inputs(target: Tensor, masking: Masking) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a model that predicts all words in one pass.

    Args:
        target: ``(batch, length)`` tokens without BOS and EOS.
        masking: ``"unobserved"``: every input is MASK and the loss is computed over all tokens, the
            default for OaXE. ``"partial-all"``: k positions, chosen at random with k uniform in
            1..N, are MASK and the others show their token; the loss is over all tokens.
            ``"partial-masks"``: the same, but the loss is only over tokens under a MASK, as the
            CMLM is trained.

    Example:
        >>> decoder_inputs(torch.tensor([[8, 9, PAD]]), "unobserved")
        (tensor([[4, 4, 0]]), tensor([[   8,    9, -100]]))
    """
    if masking not in get_args(Masking):
        raise ValueError(f"masking must be one of {get_args(Masking)}, got {masking!r}")
    real = target != PAD
    wanted = target.masked_fill(~real, IGNORED)
    if masking == "unobserved":
        return target.masked_fill(real, MASK), wanted
    masked = random_positions(real)
    if masking == "partial-masks":
        wanted = wanted.masked_fill(~masked, IGNORED)
    return target.masked_fill(masked, MASK), wanted


def random_positions(real: Tensor) -> Tensor:
    """``(batch, length)`` bool: k of the N real positions of each row, k uniform in 1..N."""
    batch, length = real.shape
    draws = torch.rand(batch, length + 1, device=real.device)
    n = real.sum(1, keepdim=True)
    k = 1 + (draws[:, :1] * n).long()  # draws are below 1; rounding up to n + 1 is harmless below
    order = draws[:, 1:].masked_fill(~real, 2.0).argsort(1)
    rank = order.argsort(1)  # of each position among the draws of its row, padding last
    return (rank < k) & real


def drawn(among: Tensor, number: Tensor) -> Tensor:
    """``(batch, length)`` bool: ``number (batch, 1)`` at random of the positions that are True."""
    order = torch.rand_like(among, dtype=torch.float32).masked_fill(~among, 2.0)
    return (order.argsort(1).argsort(1) < number) & among


def causal_inputs(target: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the autoregressive model, one longer than ``target (batch, length)``.

    Example:
        >>> causal_inputs(torch.tensor([[8, 9, PAD]]))
        (tensor([[1, 8, 9, 0]]), tensor([[   8,    9,    2, -100]]))
    """
    inputs = F.pad(target, (1, 0), value=BOS)
    n = (target != PAD).sum(1, keepdim=True)
    wanted = F.pad(target, (0, 1), value=PAD).scatter(1, n, EOS)
    return inputs, wanted.masked_fill(wanted == PAD, IGNORED)


def upsampled(source: Tensor, factor: int) -> Tensor:
    """Every source token ``factor`` times: inputs of a decoder whose length depends on the source.

    Each position starts from a source word nearby.

    Example:
        >>> upsampled(torch.tensor([[8, EOS, PAD]]), 2)
        tensor([[8, 8, 2, 2, 0, 0]])
    """
    return source.repeat_interleave(factor, dim=1)
