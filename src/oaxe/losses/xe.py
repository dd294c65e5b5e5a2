"""Cross entropy (XE), the baseline: every word at its own position."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_class_weights,
    check_targets,
    reduce,
)


def xe_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy, equation 1 of the paper; equals ``F.cross_entropy`` on flattened input.

    .. math:: L_{XE} = -\sum_n w_{y_n} \log P_n(y_n)

    Args:
        logits: ``(batch, length, vocab)``; half precision is computed and returned in float32.
        target: ``(batch, length)`` token ids.
        weight: w, ``(vocab,)``, of each class, without gradient. Default: 1.
        ignore_index: targets of this value take no part.
        label_smoothing: weight of the uniform distribution in the target, in [0, 1]. Class weights
            apply to every word of that distribution.
        reduction: ``"mean"`` divides by the number of targets that are not ignored, or by the sum
            of their class weights, ``"sum"``, or ``"none"`` for ``(batch, length)`` with 0 where
            ignored.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> xe_loss(logits, torch.tensor([[0, 1]]))
        tensor(0.1269)
        >>> xe_loss(logits, torch.tensor([[1, 0]]))  # right words, wrong positions
        tensor(2.1269)
    """
    targets = check_targets(logits, target, ignore_index, same_length=True)
    weight = check_class_weights(weight, logits)
    losses, _ = token_losses(logits, targets, weight, label_smoothing)
    return reduce(losses, targets, reduction, weight)


def token_losses(
    logits: Tensor, targets: Targets, weight: Tensor | None, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Loss and log-probability of each target, ``(batch, length)``; both 0 where ignored."""
    check_label_smoothing(label_smoothing)
    words, mask = targets
    log_probs = F.log_softmax(at_least_float32(logits), dim=-1)  # (batch, length, vocab)
    log_prob = log_probs.gather(2, words.unsqueeze(2)).squeeze(2)  # (batch, length)
    losses = -log_prob if weight is None else -weight[words] * log_prob
    if label_smoothing > 0:
        weighted = log_probs if weight is None else log_probs * weight
        losses = torch.lerp(losses, -weighted.mean(dim=-1), label_smoothing)
    zero = losses.new_zeros(())
    return torch.where(mask, losses, zero), torch.where(mask, log_prob.detach(), zero)


def check_label_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
