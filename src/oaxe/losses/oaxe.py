"""Order-agnostic cross entropy (OaXE): every word at the position where it is likeliest."""

from typing import Literal, NamedTuple, TypedDict, Unpack, overload

import torch
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_class_weights,
    check_number,
    check_targets,
    reduce,
)
from oaxe.losses.assignment import linear_assignment
from oaxe.losses.linear_softmax import as_linear_would, layer_logsumexp
from oaxe.losses.own_words import own_words, sentence_scores
from oaxe.losses.xe import layer_losses, token_losses


class Order(NamedTuple):
    """The order of the target that a loss was computed over.

    ``order.truncated.sum()`` words were dropped; ``(order.positions - torch.arange(length)).abs()``
    is how far each word was moved.
    """

    target: Tensor  # (batch, length): the reordered target; ignored targets stay where they are
    positions: Tensor  # (batch, length) int64: for each position, where its word was in the target
    truncated: Tensor  # (batch, length) bool: True where the word was too improbable to count


class OaXEOptions(TypedDict, total=False):
    """The keyword options of :func:`oaxe_loss`."""

    weight: Tensor | None
    truncation: float
    ignore_index: int
    label_smoothing: float
    reduction: Reduction


@overload
def oaxe_loss(
    logits: Tensor,
    target: Tensor,
    *,
    return_order: Literal[False] = False,
    **options: Unpack[OaXEOptions],
) -> Tensor: ...


@overload
def oaxe_loss(
    logits: Tensor, target: Tensor, *, return_order: Literal[True], **options: Unpack[OaXEOptions]
) -> tuple[Tensor, Order]: ...


def oaxe_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    truncation: float = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    return_order: bool = False,
) -> Tensor | tuple[Tensor, Order]:
    r"""Cross entropy of the best ordering of the target, equation 3 of the paper.

    .. math:: L_{OaXE} = \min_{O} -\sum_n w_{o_n} \log P_n(o_n), \quad O \text{ a permutation of } y

    The ordering is found exactly and carries no gradient; the loss is cross entropy on it. A
    position whose target is ignored takes no part, neither as a position nor as a word: padding on
    either side and "loss on masked tokens only" need nothing else.

    Train with :func:`xe_loss` first where outputs are read in order: from random weights most
    orderings are noise. Sets need no such start. The logit of every word of a target at every
    position of its sentence must be finite: else :class:`NotFiniteError`, on a GPU from a later
    call.

    Args:
        logits: ``(batch, length, vocab)``; half precision is computed and returned in float32.
        target: ``(batch, length)`` token ids.
        weight: w, ``(vocab,)``, of each class, without gradient. Default: 1. The ordering is the
            one of the least *weighted* cross entropy: a word of greater weight has the first claim
            on a position that two words want.
        truncation: :math:`\pi` of the truncated loss, in [0, 1). A matched token whose probability
            (not weighted) is not above it, up to rounding, contributes neither loss nor gradient,
            label smoothing included: before the model knows anything, all of them, and the loss is
            0. 0 turns truncation off.
        ignore_index: targets of this value take no part.
        label_smoothing: weight of the uniform distribution in the target, in [0, 1].
        reduction: ``"mean"`` divides by the number of targets that are not ignored, or by the sum
            of their class weights (truncated tokens stay in it; NaN if there is none), ``"sum"``,
            or ``"none"`` for ``(batch, length)`` in the order of the *positions*, with 0 where
            ignored.
        return_order: return ``(loss, order)``, with the :class:`Order` that was found.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> oaxe_loss(logits, torch.tensor([[1, 0]]))  # right words, any positions
        tensor(0.1269)
        >>> loss, order = oaxe_loss(logits, torch.tensor([[1, 0]]), return_order=True)
        >>> order.target, order.positions
        (tensor([[0, 1]]), tensor([[1, 0]]))
    """
    check_truncation(truncation)
    targets = check_targets(logits, target, ignore_index, same_length=True)
    weight = check_class_weights(weight, logits)
    positions = best_positions(logits, targets, weight)
    targets = reordered(targets, positions)
    losses, log_prob = token_losses(logits, targets, weight, label_smoothing)
    too_improbable = log_prob.exp() <= least_probability(truncation, losses.dtype)
    truncated = targets.mask & too_improbable  # NaN is kept, and seen
    losses = torch.where(truncated, losses.new_zeros(()), losses)
    loss = reduce(losses, targets, reduction, weight)
    if not return_order:
        return loss
    return loss, Order(in_order(target, positions), positions, truncated)


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
    targets = check_targets(layer.stand_in, target, ignore_index, same_length=True)
    weight = check_class_weights(weight, layer.stand_in)
    with torch.no_grad():
        normalizer = None if weight is None else layer_logsumexp(layer, targets.mask, capacity)
        positions = match(sentence_scores(layer, targets.words), targets, weight, normalizer)
    targets = reordered(targets, positions)
    dtype = torch.promote_types(layer.hidden.dtype, torch.float32)
    options = label_smoothing, least_probability(truncation, dtype), reduction, capacity
    losses, kept = layer_losses(layer, targets, weight, *options)
    loss = reduce(losses, targets, reduction, weight)
    if not return_order:
        return loss
    return loss, Order(in_order(target, positions), positions, targets.mask & ~kept)


def best_order(
    logits: Tensor, target: Tensor, ignore_index: int = -100, *, weight: Tensor | None = None
) -> Tensor:
    """The reordered target that :func:`oaxe_loss` trains on.

    Args:
        logits: ``(batch, length, vocab)``.
        target: ``(batch, length)`` token ids.
        ignore_index: targets of this value stay where they are.
        weight: ``(vocab,)``, of each class. Default: 1.

    Returns:
        ``(batch, length)``: for each position, the word of the target that it is matched to.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> best_order(logits, torch.tensor([[1, 0]]))
        tensor([[0, 1]])
    """
    targets = check_targets(logits, target, ignore_index, same_length=True)
    weight = check_class_weights(weight, logits)
    return in_order(target, best_positions(logits, targets, weight))


def in_order(target: Tensor, positions: Tensor) -> Tensor:
    """The target as it was given, ignored words included; torch cannot gather all whole numbers."""
    return target.long().gather(1, positions).to(target.dtype)


def best_positions(logits: Tensor, targets: Targets, weight: Tensor | None = None) -> Tensor:
    """``(batch, length)``: for each position, the index of its word in the target.

    Without class weights raw logits will do: log-softmax subtracts one constant a position, and a
    constant added to a row of the cost matrix changes no assignment. With weights it is multiplied
    by those of the words, a constant no more: the costs are of log-probabilities.
    """
    logits = logits.detach()
    scores = at_least_float32(own_words(logits, targets.words))
    normalizer = None if weight is None else at_least_float32(logits).logsumexp(-1)
    return match(scores, targets, weight, normalizer)


def match(
    scores: Tensor, targets: Targets, weight: Tensor | None, normalizer: Tensor | None
) -> Tensor:
    """The same, of the words' logits ``(batch, position, word)``.

    ``normalizer (batch, position)`` is the logsumexp of all logits, needed with class weights.
    """
    cost = -scores
    if weight is not None and normalizer is not None:
        cost = (cost + normalizer.unsqueeze(2)) * weight[targets.words].unsqueeze(1)
    return linear_assignment(cost, targets.mask)


def reordered(targets: Targets, positions: Tensor) -> Targets:
    return Targets(targets.words.gather(1, positions), targets.mask)


def check_truncation(truncation: float) -> None:
    check_number("truncation", truncation)
    if not 0 <= truncation < 1:
        raise ValueError(f"truncation must be in [0, 1), 0 for none; got {truncation}")


def least_probability(truncation: float, dtype: torch.dtype) -> float:
    """What a word's probability must be above; negative, so all are, without truncation.

    exp(log p) is off by a few units in the last place; p = pi has to count as "not above".
    """
    return truncation * (1 + 8 * torch.finfo(dtype).eps) if truncation > 0 else -1.0
