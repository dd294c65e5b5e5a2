"""The losses on hidden states and the output embedding: the logits are never stored whole.

    xe_loss(F.linear(hidden, weight), target)  # tokens x vocab numbers, several times over
    linear_xe_loss(hidden, weight, target)     # a chunk of them at a time

Arguments and results are those of the losses on logits, with ``hidden (batch, length, dim)``,
``weight (vocab, dim)`` and ``bias (vocab,)`` in place of ``logits (batch, length, vocab)``. Under
autocast they are cast as in F.linear. There is no second derivative.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import Reduction, at_least_float32, check_targets, reduce
from oaxe.losses.assignment import linear_assignment
from oaxe.losses.axe import aligned_losses, alignment_tokens, check_delta, split_costs
from oaxe.losses.linear_softmax import as_linear_would, linear_cross_entropy, linear_logsumexp
from oaxe.losses.oaxe import check_truncation, least_probability
from oaxe.losses.xe import check_label_smoothing


def linear_xe_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """:func:`xe_loss` of ``F.linear(hidden, weight, bias)``, without storing those logits.

    Example:
        >>> hidden = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> linear_xe_loss(hidden, torch.eye(2), torch.tensor([[0, 1]]))
        tensor(0.1269)
    """
    check_label_smoothing(label_smoothing)
    hidden, weight, bias = as_linear_would(hidden, weight, bias)
    logits = shape_of_logits(hidden, weight)
    target, counts = check_targets(logits, target, ignore_index, one_place_a_word=True)
    return _reduced(hidden, weight, bias, target, counts, label_smoothing, 0.0, reduction)


def linear_oaxe_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    truncation: float = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """:func:`oaxe_loss` of ``F.linear(hidden, weight, bias)``, without storing those logits.

    The ordering is found on products in float32, also where hidden states are of half precision;
    logits rounded to half precision may prefer another one. There is no second derivative.

    Example:
        >>> hidden = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> linear_oaxe_loss(hidden, torch.eye(2), torch.tensor([[1, 0]]))
        tensor(0.1269)
    """
    check_label_smoothing(label_smoothing)
    check_truncation(truncation)
    hidden, weight, bias = as_linear_would(hidden, weight, bias)
    logits = shape_of_logits(hidden, weight)
    target, counts = check_targets(logits, target, ignore_index, one_place_a_word=True)
    target = target.gather(1, linear_best_places(hidden, weight, bias, target, counts))
    return _reduced(hidden, weight, bias, target, counts, label_smoothing, truncation, reduction)


def linear_axe_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    bias: Tensor | None = None,
    delta: float = 1.0,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """:func:`axe_loss` of ``F.linear(hidden, weight, bias)``, without storing those logits.

    Example:
        >>> hidden = torch.eye(4)[[3, 0, 1]].unsqueeze(0) * 9  # blank, 0, 1
        >>> linear_axe_loss(hidden, torch.eye(4), torch.tensor([[0, 1]]), blank=3)
        tensor(0.0006)
    """
    check_delta(delta)
    hidden, weight, bias = as_linear_would(hidden, weight, bias)
    logits = shape_of_logits(hidden, weight)
    tokens, counts, takes_part = alignment_tokens(logits, target, blank, logit_mask, ignore_index)
    if hidden.shape[1] == 0:
        return reduce(at_least_float32(hidden).sum(dim=(1, 2)), counts, reduction)
    scores = sentence_scores(hidden, weight, bias, tokens)
    costs = linear_logsumexp(hidden, weight, bias).unsqueeze(2) - scores
    losses = aligned_losses(split_costs(costs, counts, takes_part), delta)
    return reduce(losses, counts, reduction)


def linear_best_places(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, counts: Tensor
) -> Tensor:
    """``(batch, length)``: for each place, the position of its word in the target."""
    words = target.masked_fill(~counts, 0)
    with torch.no_grad():
        return linear_assignment(-sentence_scores(hidden, weight, bias, words), counts)


def sentence_scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor) -> Tensor:
    """``(batch, place, word)``: logits of each sentence's own words, in float32 or better."""
    with torch.autocast(hidden.device.type, enabled=False):
        embedded = F.embedding(words, weight).transpose(1, 2)  # (batch, dim, word)
        if hidden.is_cuda and hidden.dtype.itemsize == 2 and not torch.is_grad_enabled():
            # Of half precision, added up in float32; it has no derivative.
            scores = torch.bmm(hidden, embedded, out_dtype=torch.float32)
        else:
            scores = at_least_float32(hidden) @ at_least_float32(embedded)
    return scores if bias is None else scores + bias[words].unsqueeze(1)


def shape_of_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """A view that has the shape and dtype of the logits, for checks; it takes no memory."""
    if hidden.dim() != 3:
        raise ValueError(f"hidden must be (batch, length, dim), got {tuple(hidden.shape)}")
    return hidden.detach().new_empty(1, 1, 1).expand(*hidden.shape[:2], len(weight))


def _reduced(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    counts: Tensor,
    label_smoothing: float,
    truncation: float,
    reduction: Reduction,
) -> Tensor:
    words = target.masked_fill(~counts, 0)
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    least = least_probability(truncation, dtype)
    if reduction == "none":
        return _token_losses(hidden, weight, bias, words, counts, label_smoothing, least)
    total, _ = linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[2]),
        weight,
        bias,
        words.flatten(),
        counts.flatten(),
        label_smoothing,
        least,
    )
    return reduce(total, counts, reduction)


def _token_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    words: Tensor,
    counts: Tensor,
    label_smoothing: float,
    least: float,
) -> Tensor:
    """``(batch, length)``. Each may be weighed later, so gradients are found going backward."""
    logsumexp = linear_logsumexp(hidden, weight, bias)
    own = _dot(hidden, F.embedding(words, weight), None if bias is None else bias[words])
    losses = logsumexp - own
    if label_smoothing > 0:  # the mean of the logits is the logit of the mean embedding
        middle = at_least_float32(weight).mean(0), None if bias is None else bias.mean()
        losses = torch.lerp(losses, logsumexp - _dot(hidden, *middle), label_smoothing)
    kept = counts & ((own - logsumexp).detach().exp() > least)
    return torch.where(kept, losses, losses.new_zeros(()))


def _dot(hidden: Tensor, embedded: Tensor, bias: Tensor | None) -> Tensor:
    product = (at_least_float32(hidden) * embedded).sum(-1)
    return product if bias is None else product + bias
