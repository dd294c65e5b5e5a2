"""Aligned cross entropy (AXE): words may shift, but not change their order.

Ghazvininejad et al., 2020: the cheapest monotone alignment of targets i = 1..n to predictions
j = 1..m, with a blank for predictions that are left over:

    A[0, 0] = 0,  A[i, j] = min( A[i-1, j-1] - log P_j(y_i)            align
                                 A[i, j-1]   - log P_j(blank)          skip the prediction
                                 A[i-1, j]   - delta log P_max(j,1)(y_i) ) skip the target
"""

import warnings
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_blank,
    check_number,
    check_targets,
    kept_first,
    leading,
    prediction_mask,
    reduce,
    triton_kernels,
)
from oaxe.losses.linear_softmax import as_linear_would
from oaxe.losses.own_words import log_probs_of, sentence_costs

ALIGN, SKIP_PREDICTION, SKIP_TARGET = range(3)


class AlignmentCosts(NamedTuple):
    word: Tensor  # (batch, predictions, targets); what takes part comes first on both axes
    blank: Tensor  # (batch, predictions)
    n_targets: Tensor  # (batch,): how many take part
    n_predictions: Tensor  # (batch,): likewise


class MonotoneAlignment(NamedTuple):
    position: Tensor  # (batch, targets) int64: the prediction that a target is aligned to
    skipped: Tensor  # (batch, targets) bool: the target shares its prediction, at the penalty delta
    blank: Tensor  # (batch, predictions) bool: the prediction is left over, its cost that of blank


def axe_loss(
    logits: Tensor,
    target: Tensor,
    *,
    blank: int,
    delta: float = 1.0,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Aligned cross entropy: the cost of the best monotone alignment, by its exact recursion.

    .. math::
        L_{AXE} = -\sum_i w_i \log P_{\alpha(i)}(y_i) - \sum_{k \notin \alpha} \log P_k(\epsilon)

    with :math:`w_i = \delta` for a skipped target and 1 for an aligned one. The gradient is that of
    the alignment found; the recursion itself is not differentiated.

    Args:
        logits: ``(batch, predictions, vocab)``; half precision is computed in float32.
        target: ``(batch, targets)`` token ids; their number may differ from that of predictions.
        blank: id of :math:`\epsilon`, an output symbol of its own that is removed when decoding.
        delta: penalty factor for a target that shares its prediction with another.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part. Default: all
            of them, padding included, so pass it for sentences of different lengths.
        ignore_index: targets of this value take no part.
        reduction: ``"mean"`` divides by the number of targets that are not ignored, ``"sum"``, or
            ``"none"`` for one value a sentence, ``(batch,)``.

    A sentence without a single prediction contributes 0.

    Example:
        >>> logits = torch.eye(4)[[3, 0, 1]].unsqueeze(0) * 9  # blank, 0, 1
        >>> axe_loss(logits, torch.tensor([[0, 1]]), blank=3)
        tensor(0.0006)
    """
    check_delta(delta)
    targets, costs = alignment_costs(logits, target, blank, logit_mask, ignore_index)
    warn_of_blanks(targets, blank)
    if logits.shape[1] == 0:
        return reduce(at_least_float32(logits).sum(dim=(1, 2)), targets, reduction)
    return reduce(aligned_losses(costs, delta), targets, reduction)


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
    logits = layer.stand_in
    targets, tokens, mask = alignment_tokens(logits, target, blank, logit_mask, ignore_index)
    warn_of_blanks(targets, blank)
    if input.shape[1] == 0:
        nothing = F.linear(*layer)  # which every argument has a gradient from: 0
        return reduce(at_least_float32(nothing).sum(dim=(1, 2)), targets, reduction)
    costs = sentence_costs(layer, tokens, mask, capacity)
    losses = aligned_losses(split_costs(costs, targets, mask), delta)
    return reduce(losses, targets, reduction)


def aligned_losses(costs: AlignmentCosts, delta: float) -> Tensor:
    """``(batch,)``: the cost of the best alignment; there is at least one prediction."""
    word_cost, blank_cost, n_targets, n_predictions = costs
    best = monotone_alignment(costs, delta)
    words = word_cost.gather(1, best.position.unsqueeze(1)).squeeze(1)  # (batch, targets)
    words = torch.where(best.skipped, delta * words, words)
    real = leading(n_targets, words.shape[1]) & (n_predictions > 0).unsqueeze(1)
    zero = words.new_zeros(())
    blanks = torch.where(best.blank, blank_cost, zero)
    return torch.where(real, words, zero).sum(1) + blanks.sum(1)


def check_delta(delta: float) -> None:
    check_number("delta", delta)
    if not 0 <= delta < float("inf"):
        raise ValueError(f"delta must be at least 0, and finite, got {delta}")


def warn_of_blanks(targets: Targets, blank: int) -> None:
    """On the CPU: a target that is the blank is learned, and removed when decoding."""
    if targets.words.device.type == "cpu" and not torch.compiler.is_compiling():
        rows = rows_with_blank(targets, blank)
        if rows:
            warnings.warn(
                f"target holds the blank ({blank}) in batch rows {rows[:10]}, which decoding "
                "removes; give the blank an id that no word has",
                stacklevel=3,
            )


def rows_with_blank(targets: Targets, blank: int) -> list[int]:
    wrong = ((targets.words == blank) & targets.mask).any(dim=1)
    return wrong.nonzero().flatten().tolist()


def alignment_costs(
    logits: Tensor, target: Tensor, blank: int, logit_mask: Tensor | None, ignore_index: int
) -> tuple[Targets, AlignmentCosts]:
    """The targets, and the costs of words and blanks."""
    targets, tokens, mask = alignment_tokens(logits, target, blank, logit_mask, ignore_index)
    return targets, split_costs(-log_probs_of(logits, tokens), targets, mask)


def alignment_tokens(
    logits: Tensor, target: Tensor, blank: int, logit_mask: Tensor | None, ignore_index: int
) -> tuple[Targets, Tensor, Tensor | None]:
    """The targets; words, ignored ones last, and a blank: ``(batch, targets + 1)``; the mask."""
    targets = check_targets(logits, target, ignore_index, same_length=False)
    check_blank(logits, blank)
    mask = None if logit_mask is None else prediction_mask(logits, logit_mask)
    words = targets.words.gather(1, kept_first(targets.mask))
    return targets, F.pad(words, (0, 1), value=blank), mask


def split_costs(costs: Tensor, targets: Targets, logit_mask: Tensor | None) -> AlignmentCosts:
    """``costs (batch, predictions, targets + 1)``: predictions that take part are moved first."""
    n_predictions = targets.words.new_full((len(costs),), costs.shape[1])
    if logit_mask is not None:
        costs = costs.gather(1, kept_first(logit_mask).unsqueeze(2).expand_as(costs))
        n_predictions = logit_mask.sum(1)
    return AlignmentCosts(costs[:, :, :-1], costs[:, :, -1], targets.mask.sum(1), n_predictions)


def monotone_alignment(costs: AlignmentCosts, delta: float) -> MonotoneAlignment:
    """The cheapest of each sentence; ``delta`` is a factor on the cost of a skipped target."""
    return MonotoneAlignment(*_monotone_alignment(*(x.detach() for x in costs), delta))


# A registered operator, so that torch.compile takes it as one opaque call.
@torch.library.custom_op("oaxe::monotone_alignment", mutates_args=())
def _monotone_alignment(
    word_cost: Tensor, blank_cost: Tensor, n_targets: Tensor, n_predictions: Tensor, delta: float
) -> tuple[Tensor, Tensor, Tensor]:
    moves = _best_moves(word_cost, blank_cost, delta)
    return _trace_back(moves, n_targets, n_predictions, word_cost.shape[1])


@_monotone_alignment.register_kernel("cuda")
def _(word_cost: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    fits = word_cost.dtype == torch.float32 and word_cost.shape[2] < 2_048
    kernel = triton_kernels("alignment") if fits else None
    align = kernel.align if kernel else _monotone_alignment._init_fn  # PyTorch, on any device
    return align(word_cost, *others)


@_monotone_alignment.register_fake
def _(word_cost: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, m, n = word_cost.shape
    return (
        word_cost.new_empty(batch, n, dtype=torch.int64),
        word_cost.new_empty(batch, n, dtype=torch.bool),
        word_cost.new_empty(batch, m, dtype=torch.bool),
    )


def _best_moves(word_cost: Tensor, blank_cost: Tensor, delta: float) -> Tensor:
    """The recursion, one anti-diagonal d = i + j at a time: ``(batch, n + m + 1, n + 1)`` moves."""
    batch, m, n = word_cost.shape
    infinity = float("inf")
    diagonals = torch.arange(n + m + 1, device=word_cost.device).unsqueeze(1)
    j = diagonals - torch.arange(n + 1, device=word_cost.device)  # (diagonals, n + 1)
    position = (j - 1).clamp(0, m - 1)  # prediction 1 stands in where j = 0
    here = word_cost.gather(1, position[:, 1:].expand(batch, -1, -1))  # (batch, diagonals, n)
    left_over = blank_cost.gather(1, position.flatten().expand(batch, -1)).view(batch, *j.shape)
    moves = word_cost.new_zeros(batch, n + m + 1, n + 1, dtype=torch.uint8)
    before = word_cost.new_full((batch, n + 1), infinity)
    last = before.clone()
    last[:, 0] = 0
    for d in range(1, n + m + 1):
        align = F.pad(before[:, :-1] + here[:, d], (1, 0), value=infinity)
        skip_prediction = last + left_over[:, d]
        skip_target = F.pad(last[:, :-1] + delta * here[:, d], (1, 0), value=infinity)
        before = last
        last, move = torch.stack([align, skip_prediction, skip_target]).min(0)
        last = last.masked_fill(j[d] < 0, infinity)
        moves[:, d] = move
    return moves


def _trace_back(
    moves: Tensor, n_targets: Tensor, n_predictions: Tensor, m: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk from (n, m) to (0, 0). Index 0 of the results collects steps that are no steps."""
    batch, n = moves.shape[0], moves.shape[2] - 1
    moves = moves.flatten(1)
    position = moves.new_zeros(batch, n + 1, dtype=torch.int64)
    skipped = moves.new_zeros(batch, n + 1, dtype=torch.bool)
    blank = moves.new_zeros(batch, m + 1, dtype=torch.bool)
    i, j = n_targets.unsqueeze(1), n_predictions.unsqueeze(1)
    for _ in range(n + m):
        move = moves.gather(1, (i + j) * (n + 1) + i)
        # Where every way costs infinity, any move may have been noted: stay inside.
        move = torch.where(i == 0, SKIP_PREDICTION, torch.where(j == 0, SKIP_TARGET, move))
        under_way = (i > 0) | (j > 0)
        uses_target = under_way & (move != SKIP_PREDICTION)
        uses_prediction = under_way & (move != SKIP_TARGET)
        position.scatter_(1, i * uses_target, (j - 1).clamp(min=0))
        skipped.scatter_(1, i * uses_target, move == SKIP_TARGET)
        blank.scatter_(1, j * uses_prediction, move == SKIP_PREDICTION)
        i, j = i - uses_target.long(), j - uses_prediction.long()
    return position[:, 1:].contiguous(), skipped[:, 1:].contiguous(), blank[:, 1:].contiguous()
