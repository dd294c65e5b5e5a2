"""What the losses of a linear layer do with a chunk of its logits, ``(rows, vocab)``, in PyTorch.

The reference of :mod:`oaxe.losses.kernels.softmax`, which does the same on a GPU.
"""

import torch
from torch import Tensor

from oaxe.losses.arguments import at_least_float32


def logsumexp(logits: Tensor) -> Tensor:
    """``(rows,)``"""
    return at_least_float32(logits).logsumexp(dim=1)


def weigh_softmax(logits: Tensor, logsumexp: Tensor, weight: Tensor) -> None:
    """Overwrite the logits by ``weight * softmax``; ``logsumexp (rows,)``, ``weight (rows,)``."""
    probability = (at_least_float32(logits) - logsumexp.unsqueeze(1)).exp()
    logits.copy_(probability * weight.unsqueeze(1))


def cross_entropy(
    logits: Tensor,
    words: Tensor,
    counts: Tensor,
    label_smoothing: float,
    least_probability: float,
    differentiate: bool,
) -> Tensor:
    """The loss of each row, ``(rows,)``, 0 where it does not count or is too improbable.

    If asked to differentiate, the logits are overwritten by the gradient of the sum of the losses.
    """
    log_probs = at_least_float32(logits).log_softmax(dim=1)
    own = log_probs.gather(1, words.unsqueeze(1)).squeeze(1)
    losses = -own
    if label_smoothing > 0:
        losses = torch.lerp(losses, -log_probs.mean(dim=1), label_smoothing)
    kept = counts & ~(own.exp() <= least_probability)  # NaN is kept, and seen
    if differentiate:
        gradient = log_probs.exp_() - label_smoothing / logits.shape[1]
        certain = gradient.new_full((len(words), 1), label_smoothing - 1)
        gradient.scatter_add_(1, words.unsqueeze(1), certain)
        logits.copy_(torch.where(kept.unsqueeze(1), gradient, 0))
    return torch.where(kept, losses, 0)
