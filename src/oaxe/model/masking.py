"""What the decoder reads while it is trained, and which tokens it is charged for.

All functions take right-padded token ids and return right-padded inputs (PAD stays PAD, so
``inputs != PAD`` is the decoder's mask) and targets with IGNORED where nothing is charged.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.text.symbols import BOS, EOS, MASK, PAD

IGNORED = -100  # the default ignore_index of the losses

Masking = Literal["unobserved", "partial-all", "partial-masks"]


def decoder_inputs(
    target: Tensor, objective: Masking, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a model that predicts all words at once.

    Args:
        target: ``(batch, length)`` tokens without BOS and EOS.
        objective: ``"unobserved"``: every input is MASK and every token is charged, the default
            for OaXE. ``"partial-all"``: k places, chosen at random with k uniform in 1..N, are MASK
            and the others show their token; every token is charged. ``"partial-masks"``: the same,
            but only tokens under a MASK are charged, as the CMLM is trained.
        generator: source of the random places; numbers are drawn on its device.

    Example:
        >>> decoder_inputs(torch.tensor([[8, 9, PAD]]), "unobserved")
        (tensor([[4, 4, 0]]), tensor([[   8,    9, -100]]))
    """
    if objective not in get_args(Masking):
        raise ValueError(f"objective must be one of {get_args(Masking)}, got {objective!r}")
    real = target != PAD
    charged = target.masked_fill(~real, IGNORED)
    if objective == "unobserved":
        return target.masked_fill(real, MASK), charged
    masked = random_places(real, generator)
    if objective == "partial-masks":
        charged = charged.masked_fill(~masked, IGNORED)
    return target.masked_fill(masked, MASK), charged


def random_places(real: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """``(batch, length)`` bool: k of the N real places of each row, k uniform in 1..N."""
    batch, length = real.shape
    device = real.device if generator is None else generator.device
    draws = torch.rand(batch, length + 1, generator=generator, device=device).to(real.device)
    n = real.sum(1, keepdim=True)
    k = 1 + (draws[:, :1] * n).long()  # draws are below 1; rounding up to n + 1 is harmless below
    order = draws[:, 1:].masked_fill(~real, 2.0).argsort(1)
    rank = order.argsort(1)  # of each place among the draws of its row, padding last
    return (rank < k) & real


def causal_inputs(target: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the autoregressive model, one longer than ``target (batch, length)``.

    Example:
        >>> causal_inputs(torch.tensor([[8, 9, PAD]]))
        (tensor([[1, 8, 9, 0]]), tensor([[   8,    9,    2, -100]]))
    """
    inputs = F.pad(target, (1, 0), value=BOS)
    n = (target != PAD).sum(1, keepdim=True)
    charged = F.pad(target, (0, 1), value=PAD).scatter(1, n, EOS)
    return inputs, charged.masked_fill(charged == PAD, IGNORED)


def ctc_inputs(source: Tensor, upsample: int) -> Tensor:
    """Inputs of a CTC decoder: every source token ``upsample`` times.

    The number of places depends on the source alone, and each place starts from a word nearby.

    Example:
        >>> ctc_inputs(torch.tensor([[8, EOS, PAD]]), 2)
        tensor([[8, 8, 2, 2, 0, 0]])
    """
    return source.repeat_interleave(upsample, dim=1)
