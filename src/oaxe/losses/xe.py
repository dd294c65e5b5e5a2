"""Cross entropy (XE), the baseline: every word at its own position."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_class_weights,
    check_number,
    check_targets,
    not_negative,
    reduce,
)
from oaxe.losses.linear_softmax import (
    Layer,
    as_linear_would,
    layer_cross_entropy,
    layer_logsumexp,
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


def linear_xe_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`xe_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    Example:
        >>> hidden = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> linear_xe_loss(hidden, torch.eye(2), torch.tensor([[0, 1]]))
        tensor(0.1269)
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets = check_targets(layer.stand_in, target, ignore_index, same_length=True)
    weight = check_class_weights(weight, layer.stand_in)
    losses, _ = layer_losses(layer, targets, weight, label_smoothing, -1.0, reduction, capacity)
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


def layer_losses(
    layer: Layer,
    targets: Targets,
    weight: Tensor | None,
    label_smoothing: float,
    least_probability: float,
    reduction: Reduction,
    capacity: int | None,
) -> tuple[Tensor, Tensor]:
    """The losses of a layer's logits to be reduced, and which words are in them.

    See :func:`~oaxe.losses.linear_softmax.layer_cross_entropy`, which has the sum; for ``"none"``,
    ``(batch, length)``.
    """
    check_label_smoothing(label_smoothing)
    of_tokens = _token_losses if reduction == "none" else layer_cross_entropy
    return of_tokens(layer, targets, weight, label_smoothing, least_probability, capacity)


def _token_losses(
    layer: Layer,
    targets: Targets,
    weight: Tensor | None,
    label_smoothing: float,
    least_probability: float,
    capacity: int | None,
) -> tuple[Tensor, Tensor]:
    """``(batch, length)`` losses and which words are kept; gradients are found going backward,
    because each loss may be weighted later."""
    (hidden, embedding, bias), (words, mask) = layer, targets
    logsumexp = layer_logsumexp(layer, mask, capacity)
    own = _dot(hidden, F.embedding(words, embedding), None if bias is None else bias[words])
    losses = logsumexp - own
    if weight is not None:
        losses = losses * weight[words]
    if label_smoothing > 0:
        smooth = uniform_losses(layer, weight, logsumexp)
        losses = torch.lerp(losses, smooth, label_smoothing)
    too_improbable = (own - logsumexp).detach().exp() <= least_probability
    kept = mask & ~too_improbable  # NaN is kept, and seen
    return torch.where(kept, not_negative(losses), losses.new_zeros(())), kept


def uniform_losses(layer: Layer, weight: Tensor | None, logsumexp: Tensor) -> Tensor:
    """``(batch, length)``: the mean cost of all words, by their mean embedding."""
    hidden, embedding, bias = layer
    embedding = at_least_float32(embedding)
    bias = None if bias is None else at_least_float32(bias)
    if weight is not None:
        logsumexp = logsumexp * weight.mean()
        embedding = embedding * weight.unsqueeze(1)
        bias = None if bias is None else bias * weight
    return logsumexp - _dot(hidden, embedding.mean(0), None if bias is None else bias.mean())


def _dot(hidden: Tensor, embedded: Tensor, bias: Tensor | None) -> Tensor:
    product = (at_least_float32(hidden) * embedded).sum(-1)
    return product if bias is None else product + bias


def check_label_smoothing(label_smoothing: float) -> None:
    check_number("label_smoothing", label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
