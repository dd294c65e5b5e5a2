"""CoCO: CTC and OaXE together, so that words may also be learned in another order.

CoCO (NAACL 2022). OaXE on more positions than words: each word is matched with the position where
it is likeliest, no two with the same one. The positions that are left over repeat a word beside
them, since decoding merges repeats; or they are blank, as in NMLA (Shao et al., 2022).
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import Reduction, Targets, check_number, leading, reduce
from oaxe.losses.assignment import linear_assignment
from oaxe.losses.axe import AlignmentCosts, split_costs
from oaxe.losses.ctc import ctc_losses, ctc_tokens
from oaxe.losses.linear_softmax import as_linear_would
from oaxe.losses.own_words import log_probs_of, sentence_costs

Rest = Literal["repeats", "blanks"]


def coco_loss(
    logits: Tensor,
    target: Tensor,
    *,
    blank: int,
    ctc_weight: float = 0.1,
    rest: Rest = "repeats",
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""A mixture of CTC and OaXE for more predictions than targets.

    .. math:: L = w L_{CTC} - (1 - w) \sum_j \log P_j(a_j)

    where :math:`a_j` is the word that the best one-to-one matching, :math:`\min_\pi -\sum_n
    \log P_{\pi(n)}(y_n)`, gives position j. Positions that it leaves over have the word of the
    matched position before or after them: of those between two, the first ones the word before, the
    others the word after, at the cheapest split. The matching carries no gradient.

    Begin with a model that :func:`ctc_loss` has trained.

    Args:
        logits: ``(batch, predictions, vocab)``; half precision is computed in float32.
        target: y, ``(batch, targets)`` token ids, none of them the blank.
        blank: id of the blank symbol.
        ctc_weight: w, from 0 to 1.
        rest: what positions without a word of their own say: ``"repeats"``, see above, or
            ``"blanks"``, whose costs the matching then takes into account.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part. Default: all
            of them, padding included, so pass it for sentences of different lengths.
        ignore_index: targets of this value take no part.
        reduction: ``"mean"`` divides by the number of targets that are not ignored, ``"sum"``, or
            ``"none"`` for one value a sentence, ``(batch,)``.

    A target contributes 0 to the part that it is impossible for: more words than predictions, or,
    for CTC, no room for blanks between equal neighbours; and 0 altogether if it has no words.

    Example:
        >>> logits = torch.eye(3)[[1, 1, 0]].unsqueeze(0) * 9  # 1, 1, 0
        >>> coco_loss(logits, torch.tensor([[0, 1]]), blank=2, ctc_weight=0)
        tensor(0.0004)
        >>> coco_loss(logits, torch.tensor([[0, 1]]), blank=2, ctc_weight=0, rest="blanks")
        tensor(4.5004)
    """
    _check(ctc_weight, rest)
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    costs = -log_probs_of(logits, tokens)
    return reduce(_losses(costs, tokens, targets, mask, ctc_weight, rest), targets, reduction)


def linear_coco_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    blank: int,
    ctc_weight: float = 0.1,
    rest: Rest = "repeats",
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`coco_loss` of ``F.linear(input, linear_weight, linear_bias)``, without those logits.

    Example:
        >>> hidden = torch.eye(3)[[1, 1, 0]].unsqueeze(0) * 9  # 1, 1, 0
        >>> linear_coco_loss(hidden, torch.eye(3), torch.tensor([[0, 1]]), blank=2, ctc_weight=0)
        tensor(0.0004)
    """
    _check(ctc_weight, rest)
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets, tokens, mask = ctc_tokens(layer.stand_in, target, blank, logit_mask, ignore_index)
    costs = sentence_costs(layer, tokens, mask, capacity)
    return reduce(_losses(costs, tokens, targets, mask, ctc_weight, rest), targets, reduction)


def _check(ctc_weight: float, rest: Rest) -> None:
    check_number("ctc_weight", ctc_weight)
    if not 0 <= ctc_weight <= 1:
        raise ValueError(f"ctc_weight must be from 0 to 1, got {ctc_weight}")
    if rest not in get_args(Rest):
        raise ValueError(f"rest must be one of {get_args(Rest)}, got {rest!r}")


def _losses(
    costs: Tensor,
    tokens: Tensor,
    targets: Targets,
    mask: Tensor | None,
    ctc_weight: float,
    rest: Rest,
) -> Tensor:
    """``(batch,)``, of -log-probabilities ``(batch, predictions, targets + 1)``, a blank's last."""
    losses = (1 - ctc_weight) * oaxe_losses(split_costs(costs, targets, mask), rest)
    if ctc_weight:
        losses = losses + ctc_weight * ctc_losses(-costs, tokens, targets, mask, True)
    return losses.masked_fill(targets.mask.sum(1) == 0, 0)


def oaxe_losses(costs: AlignmentCosts, rest: Rest) -> Tensor:
    """``(batch,)``: the cost of the labels that the matching gives."""
    word_cost, blank_cost, n_targets, n_predictions = costs
    real = leading(n_predictions, word_cost.shape[1])
    with torch.no_grad():
        match = matching(costs, rest)
        label = match if rest == "blanks" else with_repeats(match, word_cost, real)
    if word_cost.shape[2] == 0:
        return blank_cost.sum(1) * 0
    of_label = word_cost.gather(2, label.clamp(min=0).unsqueeze(2)).squeeze(2)
    losses = torch.where(real, torch.where(label < 0, blank_cost, of_label), 0).sum(1)
    return losses.masked_fill(n_targets > n_predictions, 0)


def matching(costs: AlignmentCosts, rest: Rest) -> Tensor:
    """``(batch, predictions)``: the word of each, -1 for none."""
    cost, blank_cost, n_targets, n_predictions = costs
    if rest == "blanks":  # the word's costs, in place of those of a blank
        cost = cost - blank_cost.unsqueeze(2)
    _, predictions, words = cost.shape
    real, wanted = leading(n_predictions, predictions), leading(n_targets, words)
    cost = torch.where(real.unsqueeze(2) & wanted.unsqueeze(1), cost, 0)
    cost = F.pad(cost, (0, 0, 0, max(0, words - predictions)))
    # More than any total: what is no position is chosen only where there are too few.
    never = 1 + (words + 1) * cost.abs().flatten(1).amax(1) if cost.numel() else cost.new_zeros(1)
    real = leading(n_predictions, cost.shape[1])
    cost = torch.where(real.unsqueeze(2), cost, never.view(-1, 1, 1))
    return linear_assignment(cost, column_mask=wanted)[:, :predictions]


def with_repeats(match: Tensor, word_cost: Tensor, real: Tensor) -> Tensor:
    """The same with words for all positions of a sentence that has any: the cheaper repeats."""
    batch, length, words = word_cost.shape
    if not words or not length:
        return match
    position = torch.arange(length, device=match.device).expand(batch, -1)
    matched = match >= 0
    before = position.where(matched, -1).cummax(1).values
    after = position.where(matched, length).flip(1).cummin(1).values.flip(1)
    has_before, has_after = before >= 0, after < length
    left, right = (match.gather(1, at.clamp(0, length - 1)) for at in (before, after))
    left_cost, right_cost = (
        word_cost.gather(2, word.clamp(min=0).unsqueeze(2)).squeeze(2) for word in (left, right)
    )
    # A gap begins with the matched position before it. Up to s the words before, then those after
    # cost least where the sum of their differences up to s is least.
    between = has_before & has_after & real
    excess = torch.where(between, left_cost - right_cost, 0).cumsum(1)
    gap = matched.cumsum(1)
    least = excess.new_full((batch, words + 1), torch.inf).scatter_reduce(1, gap, excess, "amin")
    at_least = position.where(excess == least.gather(1, gap), length)
    split = gap.new_full((batch, words + 1), length).scatter_reduce(1, gap, at_least, "amin")
    is_left = has_before & (~has_after | (position <= split.gather(1, gap)))
    return torch.where(is_left, left, right)
