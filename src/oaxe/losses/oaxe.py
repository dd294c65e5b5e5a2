"""Order-agnostic cross entropy (OaXE): every word in the place where the model likes it best."""

import torch
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    at_least_float32,
    check_targets,
    reduce,
)
from oaxe.losses.assignment import linear_assignment
from oaxe.losses.xe import token_losses


def oaxe_loss(
    logits: Tensor,
    target: Tensor,
    *,
    truncation: float = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy of the best ordering of the target, equation 3 of the paper.

    .. math:: L_{OaXE} = \min_{O} -\sum_n \log P_n(o_n), \quad O \text{ a permutation of } y

    The ordering is found exactly and carries no gradient; the loss is cross entropy on it. A
    position whose target is ignored takes no part, neither as a place nor as a word: padding on
    either side and "loss on masked tokens only" need nothing else.

    Train with :func:`xe_loss` first where outputs are read in order: from random weights most
    orderings are noise. Sets need no such start. The logit of every word of a target in every
    place of its sentence must be finite: else :class:`NotFiniteError`, on a GPU from a later call.

    Args:
        logits: ``(batch, length, vocab)``; half precision is computed and returned in float32.
        target: ``(batch, length)`` token ids.
        truncation: :math:`\pi` of the truncated loss, in [0, 1). A matched token whose probability
            is not above it, up to rounding, contributes neither loss nor gradient, label smoothing
            included: before the model knows anything, all of them, and the loss is 0. 0 turns
            truncation off.
        ignore_index: targets of this value take no part.
        label_smoothing: weight of the uniform distribution in the target, in [0, 1].
        reduction: ``"mean"`` divides by the number of targets that are not ignored (truncated
            tokens stay in that number; NaN if there is none), ``"sum"``, or ``"none"`` for
            ``(batch, length)`` in the order of the *places*, with 0 where ignored.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> oaxe_loss(logits, torch.tensor([[1, 0]]))  # right words, any places
        tensor(0.1269)
    """
    target, counts = check_targets(logits, target, ignore_index, one_place_a_word=True)
    places = best_places(logits, target, counts)
    losses = order_losses(logits, target, counts, places, truncation, label_smoothing)
    return reduce(losses, counts, reduction)


def best_order(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """The reordered target that :func:`oaxe_loss` trains on.

    Args:
        logits: ``(batch, length, vocab)``.
        target: ``(batch, length)`` token ids.
        ignore_index: targets of this value stay where they are.

    Returns:
        ``(batch, length)``: for each place, the word of the target that it is matched to.

    Example:
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]])
        >>> best_order(logits, torch.tensor([[1, 0]]))
        tensor([[0, 1]])
    """
    words, counts = check_targets(logits, target, ignore_index, one_place_a_word=True)
    return target.gather(1, best_places(logits, words, counts))


def best_places(logits: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """``(batch, length)``: for each place, the position of its word in the target.

    Raw logits will do: log-softmax subtracts one constant a place, and a constant added to a row
    of the cost matrix changes no assignment.
    """
    length = target.shape[1]
    words = target.masked_fill(~counts, 0).unsqueeze(1).expand(-1, length, -1)
    scores = logits.detach().gather(2, words)  # (batch, place, word)
    return linear_assignment(-at_least_float32(scores), counts)


def order_losses(
    logits: Tensor,
    target: Tensor,
    counts: Tensor,
    places: Tensor,
    truncation: float,
    label_smoothing: float,
) -> Tensor:
    """``(batch, length)`` losses of the target in the given order; 0 where ignored or truncated."""
    check_truncation(truncation)
    losses, log_prob = token_losses(logits, target.gather(1, places), counts, label_smoothing)
    if truncation > 0:
        kept = log_prob.exp() > least_probability(truncation, losses.dtype)
        losses = torch.where(kept, losses, losses.new_zeros(()))
    return losses


def check_truncation(truncation: float) -> None:
    if not 0 <= truncation < 1:
        raise ValueError(f"truncation must be in [0, 1), 0 for none; got {truncation}")


def least_probability(truncation: float, dtype: torch.dtype) -> float:
    """What a word's probability must be above; negative, so all are, without truncation.

    exp(log p) is off by a few units in the last place; p = pi has to count as "not above".
    """
    return truncation * (1 + 8 * torch.finfo(dtype).eps) if truncation > 0 else -1.0
