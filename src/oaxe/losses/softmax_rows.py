"""What the losses of a linear layer do with a chunk of its logits, ``(rows, vocab)``, in PyTorch.

The reference of :mod:`oaxe.losses.kernels.softmax`, which does the same on a GPU.
"""

import torch
from torch import Tensor

from oaxe.losses.arguments import at_least_float32


def logsumexp(logits: Tensor) -> Tensor:
    """``(rows,)``"""
    return at_least_float32(logits).logsumexp(dim=1)


def weighted_softmax(
    logits: Tensor, logsumexp: Tensor, factor: Tensor, dtype: torch.dtype
) -> Tensor:
    """``factor * softmax``, of that dtype; ``logsumexp (rows,)``, ``factor (rows,)``.

    The logits may be overwritten.
    """
    probability = (at_least_float32(logits) - logsumexp.unsqueeze(1)).exp()
    return (probability * factor.unsqueeze(1)).to(dtype)


def cross_entropy(
    logits: Tensor,
    words: Tensor,
    mask: Tensor,
    weight: Tensor | None,
    label_smoothing: float,
    least_probability: float,
    differentiate: bool,
) -> tuple[Tensor, Tensor]:
    """The loss of each row, ``(rows,)``, and which are kept: not masked, and probable enough.

    The others have loss 0. If asked to differentiate, the logits are overwritten by the gradient of
    the sum of the losses. ``weight (vocab,)`` holds class weights, in float32 or better.
    """
    log_probs = at_least_float32(logits).log_softmax(dim=1)
    own = log_probs.gather(1, words.unsqueeze(1)).squeeze(1)
    losses = -own if weight is None else -weight[words] * own
    if label_smoothing > 0:
        weighted = log_probs if weight is None else log_probs * weight
        losses = torch.lerp(losses, -weighted.mean(dim=1), label_smoothing)
    kept = mask & ~(own.exp() <= least_probability)  # NaN is kept, and seen
    if differentiate:
        gradient = log_probs.exp_()
        certain = gradient.new_full((len(words), 1), label_smoothing - 1)
        if weight is None:
            gradient = gradient - label_smoothing / logits.shape[1]
        else:
            certain = certain * weight[words].unsqueeze(1)
            gradient = gradient * (label_smoothing * weight.mean() - certain)
            gradient = gradient - weight * (label_smoothing / logits.shape[1])
        gradient.scatter_add_(1, words.unsqueeze(1), certain)
        logits.copy_(torch.where(kept.unsqueeze(1), gradient, 0))
    return torch.where(kept, losses, 0), kept
