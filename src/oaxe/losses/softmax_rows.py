"""What the losses of a linear layer do with a chunk of its logits, ``(rows, vocab)``, in PyTorch.

The reference of :mod:`oaxe.losses.kernels.softmax`, which does the same on a GPU. Everything is in
place, so that the chunk stays in the cache: new memory costs more than the arithmetic. The logits
are lost.
"""

import torch
from torch import Tensor

from oaxe.losses.arguments import at_least_float32


def logsumexp(logits: Tensor) -> Tensor:
    """``(rows,)``"""
    shifted, top = below_the_top(at_least_float32(logits))
    return shifted.exp_().sum(dim=1).log_().add_(top)


def below_the_top(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The logits less the largest of their row, which is no exponent's to overflow; and that."""
    top = logits.amax(dim=1)
    top.masked_fill_(top.isinf(), 0)
    return logits.sub_(top.unsqueeze(1)), top


def weighted_softmax(
    logits: Tensor, logsumexp: Tensor, factor: Tensor, dtype: torch.dtype
) -> Tensor:
    """``factor * softmax``, of that dtype; ``logsumexp (rows,)``, ``factor (rows,)``."""
    probability = at_least_float32(logits).sub_(logsumexp.unsqueeze(1)).exp_()
    return probability.mul_(factor.unsqueeze(1)).to(dtype)


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
    words, vocab = words.unsqueeze(1), logits.shape[1]
    shifted, _ = below_the_top(at_least_float32(logits))
    own = shifted.gather(1, words).squeeze(1)
    if label_smoothing > 0:
        mean = shifted.mean(dim=1) if weight is None else (shifted * weight).mean(dim=1)
    exponential = shifted.exp_()
    total = exponential.sum(dim=1)
    own -= total.log()  # its log-probability
    losses = -own if weight is None else -weight[words.squeeze(1)] * own
    if label_smoothing > 0:
        mean_weight = 1.0 if weight is None else weight.mean()
        losses = torch.lerp(losses, total.log() * mean_weight - mean, label_smoothing)
    kept = mask & ~(own.exp() <= least_probability)  # NaN is kept, and seen
    if differentiate:
        gradient = exponential.div_(total.unsqueeze(1))
        certain = gradient.new_full(words.shape, label_smoothing - 1)
        if weight is None:
            gradient.sub_(label_smoothing / vocab)
        else:
            certain *= weight[words]
            gradient.mul_(label_smoothing * weight.mean() - certain)
            gradient.sub_(weight * (label_smoothing / vocab))
        gradient.scatter_add_(1, words, certain).masked_fill_(~kept.unsqueeze(1), 0)
        if gradient is not logits:
            logits.copy_(gradient)
    return torch.where(kept, losses, 0), kept
