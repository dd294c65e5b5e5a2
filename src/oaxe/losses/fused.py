"""The losses on hidden states and the output embedding: the logits are never stored whole.

    xe_loss(F.linear(hidden, embedding), target)  # tokens x vocab numbers, several times over
    linear_xe_loss(hidden, embedding, target)     # a chunk of them at a time

Arguments are named as in ``F.linear_cross_entropy`` (torch 2.13): ``input (batch, length, dim)``,
``linear_weight (vocab, dim)`` and ``linear_bias (vocab,)`` in place of ``logits (batch, length,
vocab)``; ``weight (vocab,)`` holds class weights. The other arguments and the results are those of
the losses on logits. Under autocast the layer is cast as in F.linear. There is no second
derivative.

``capacity`` is the most positions of the batch that take part, if that is known: no others are
multiplied with the vocabulary, and without it all are. It pays where much is padding. If more take
part after all, the loss is NaN.
"""

from typing import Any, Literal, Unpack, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_class_weights,
    check_targets,
    not_negative,
    reduce,
)
from oaxe.losses.axe import (
    aligned_losses,
    alignment_tokens,
    check_delta,
    split_costs,
    warn_of_blanks,
)
from oaxe.losses.bag_of_ngrams import ngram_losses, ngram_targets
from oaxe.losses.ctc import ctc_losses, ctc_path, ctc_tokens
from oaxe.losses.dag import dag_losses, dag_path, dag_words
from oaxe.losses.linear_softmax import (
    Layer,
    as_linear_would,
    layer_cross_entropy,
    layer_logsumexp,
)
from oaxe.losses.oaxe import (
    OaXEOptions,
    Order,
    check_truncation,
    least_probability,
    match,
    reordered,
)
from oaxe.losses.xe import check_label_smoothing


def linear_logsumexp(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None = None
) -> Tensor:
    r"""The log of the softmax's denominator for each token, without storing its logits.

    .. math:: \log \sum_v \exp(h \cdot E_v + b_v)

    Products of half precision are kept in float32. The gradient computes the logits again, chunk by
    chunk; there is no second derivative.

    Args:
        input: h, ``(..., dim)``.
        linear_weight: E, ``(vocab, dim)``, of the same dtype.
        linear_bias: b, ``(vocab,)``.

    Returns:
        ``(...)``, in float32 or better.

    Example:
        >>> linear_logsumexp(torch.zeros(2, 3), torch.ones(10, 3)).exp()
        tensor([10., 10.])
    """
    return layer_logsumexp(as_linear_would(input, linear_weight, linear_bias))


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
    logits = shape_of_logits(layer)
    targets = check_targets(logits, target, ignore_index, same_length=True)
    weight = check_class_weights(weight, logits)
    loss, _ = _cross_entropy(layer, targets, weight, label_smoothing, 0.0, reduction, capacity)
    return loss


@overload
def linear_oaxe_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    capacity: int | None = None,
    return_order: Literal[False] = False,
    **options: Unpack[OaXEOptions],
) -> Tensor: ...


@overload
def linear_oaxe_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    capacity: int | None = None,
    return_order: Literal[True],
    **options: Unpack[OaXEOptions],
) -> tuple[Tensor, Order]: ...


def linear_oaxe_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    truncation: float = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    capacity: int | None = None,
    return_order: bool = False,
) -> Tensor | tuple[Tensor, Order]:
    """:func:`oaxe_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    The ordering is found on products in float32, also where hidden states are of half precision;
    logits rounded to half precision may prefer another one. Class weights need the logsumexp for
    the ordering too: one more product with the embedding.

    Example:
        >>> hidden = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> linear_oaxe_loss(hidden, torch.eye(2), torch.tensor([[1, 0]]))
        tensor(0.1269)
    """
    check_truncation(truncation)
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets = check_targets(logits, target, ignore_index, same_length=True)
    weight = check_class_weights(weight, logits)
    with torch.no_grad():
        normalizer = None if weight is None else layer_logsumexp(layer, targets.mask, capacity)
        positions = match(sentence_scores(layer, targets.words), targets, weight, normalizer)
    targets = reordered(targets, positions)
    loss, truncated = _cross_entropy(
        layer, targets, weight, label_smoothing, truncation, reduction, capacity
    )
    if not return_order:
        return loss
    return loss, Order(target.gather(1, positions), positions, truncated)


def linear_axe_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    linear_bias: Tensor | None = None,
    delta: float = 1.0,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`axe_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    Example:
        >>> hidden = torch.eye(4)[[3, 0, 1]].unsqueeze(0) * 9  # blank, 0, 1
        >>> linear_axe_loss(hidden, torch.eye(4), torch.tensor([[0, 1]]), blank=3)
        tensor(0.0006)
    """
    check_delta(delta)
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets, tokens, mask = alignment_tokens(logits, target, blank, logit_mask, ignore_index)
    warn_of_blanks(targets, blank)
    if input.shape[1] == 0:
        nothing = F.linear(*layer)  # which every argument has a gradient from: 0
        return reduce(at_least_float32(nothing).sum(dim=(1, 2)), targets, reduction)
    costs = sentence_costs(layer, tokens, mask, capacity)
    losses = aligned_losses(split_costs(costs, targets, mask), delta)
    return reduce(losses, targets, reduction)


def linear_bag_of_ngrams_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    n: int = 2,
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`bag_of_ngrams_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those
    logits.

    Example:
        >>> hidden = 9 * torch.eye(5)[[3, 0, 1, 2]].unsqueeze(0)  # 3, 0, 1, 2
        >>> linear_bag_of_ngrams_loss(hidden, torch.eye(5), torch.tensor([[0, 1, 2, 3]]))
        tensor(0.3340)
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets, mask = ngram_targets(logits, target, n, logit_mask, ignore_index)
    probability = sentence_costs(layer, targets.words, mask, capacity).neg().exp()
    return ngram_losses(probability, targets, mask, n, reduction)


def linear_ctc_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    zero_infinity: bool = True,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`ctc_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> linear_ctc_loss(hidden, torch.eye(3), torch.tensor([[0, 1]]), blank=2)
        tensor(0.0002)
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, tokens, mask, capacity)
    return reduce(ctc_losses(emissions, tokens, targets, mask, zero_infinity), targets, reduction)


@torch.no_grad()
def linear_ctc_best_path(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """:func:`ctc_best_path` of ``F.linear(input, linear_weight, linear_bias)``, without its logits.

    Only those of a sentence's own words are computed.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 2, 1]].unsqueeze(0)  # 0, blank, blank, 1
        >>> linear_ctc_best_path(hidden, torch.eye(3), torch.tensor([[0, 1]]), blank=2)
        tensor([[0, 2, 2, 1]])
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    return ctc_path(sentence_scores(layer, tokens), tokens, targets, mask, ignore_index)


def linear_dag_loss(
    input: Tensor,
    linear_weight: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
    zero_infinity: bool = False,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`dag_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> linear_dag_loss(hidden, torch.eye(3), links, torch.tensor([[0, 1]]), reduction="sum")
        tensor(0.6936)
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets, words, links, mask = dag_words(logits, links, target, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, words, mask, capacity).transpose(1, 2)
    return reduce(dag_losses(emissions, links, targets, mask, zero_infinity), targets, reduction)


@torch.no_grad()
def linear_dag_best_path(
    input: Tensor,
    linear_weight: Tensor,
    links: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    logit_mask: Tensor | None = None,
    capacity: int | None = None,
) -> Tensor:
    """:func:`dag_best_path` of ``F.linear(input, linear_weight, linear_bias)``, without its logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9
        >>> links = torch.tensor([[[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).log()
        >>> linear_dag_best_path(hidden, torch.eye(3), links, torch.tensor([[0, 1]]))
        tensor([[0, 2]])
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets, words, links, mask = dag_words(logits, links, target, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, words, mask, capacity).transpose(1, 2)
    return dag_path(emissions, links, targets, mask)


def sentence_costs(
    layer: Layer, words: Tensor, mask: Tensor | None, capacity: int | None
) -> Tensor:
    """``(batch, position, word)``: -log-probabilities of each sentence's own words."""
    normalizer = layer_logsumexp(layer, mask, capacity)
    return not_negative(normalizer.unsqueeze(2) - sentence_scores(layer, words))


def sentence_scores(layer: Layer, words: Tensor) -> Tensor:
    """``(batch, position, word)``: logits of each sentence's own words, in float32 or better."""
    hidden, embedding, bias = layer
    embedded = F.embedding(words, embedding).transpose(1, 2)  # (batch, dim, word)
    scores = product(hidden, embedded)
    return scores if bias is None else scores + bias[words].unsqueeze(1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of matrices ``(batch, n, k)`` and ``(batch, k, m)``, in float32 or better."""
    with torch.autocast(a.device.type, enabled=False):
        if a.is_cuda and a.dtype.itemsize == 2:
            out: Tensor = _HalfProduct.apply(a, b)  # type: ignore[no-untyped-call]
            return out
        return at_least_float32(a) @ at_least_float32(b)


class _HalfProduct(torch.autograd.Function):
    """A batch of products of half precision, added up in float32; torch has no derivative of it.

    Gradients are products of half precision, as those of any layer are.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.bmm(a, b, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        gradient = gradient.to(a.dtype)
        return torch.bmm(gradient, b.mT), torch.bmm(a.mT, gradient)


def shape_of_logits(layer: Layer) -> Tensor:
    """A view that has the shape and dtype of the logits, for checks; it takes no memory."""
    hidden, embedding, _ = layer
    if hidden.dim() != 3:
        raise ValueError(f"input must be (batch, length, dim), got {tuple(hidden.shape)}")
    return hidden.detach().new_empty(1, 1, 1).expand(*hidden.shape[:2], len(embedding))


def _cross_entropy(
    layer: Layer,
    targets: Targets,
    weight: Tensor | None,
    label_smoothing: float,
    truncation: float,
    reduction: Reduction,
    capacity: int | None,
) -> tuple[Tensor, Tensor]:
    """The reduced loss, and which words were truncated, ``(batch, length)`` bool."""
    check_label_smoothing(label_smoothing)
    dtype = torch.promote_types(layer.hidden.dtype, torch.float32)
    options = label_smoothing, least_probability(truncation, dtype)
    of_tokens = _token_losses if reduction == "none" else layer_cross_entropy
    losses, kept = of_tokens(layer, targets, weight, *options, capacity)
    return reduce(losses, targets, reduction, weight), targets.mask & ~kept


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
