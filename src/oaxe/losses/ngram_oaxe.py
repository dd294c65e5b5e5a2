"""OaXE of n-grams: phrases may move, but the words within keep their order.

ngram-OaXE of Du et al., 2022. OaXE matches words and positions, and forgets which words stand
together; here windows of n words are matched with windows of n positions. With n = 1 it is OaXE,
and with n as long as the target it is cross entropy.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_n,
    check_targets,
    kept_first,
    leading,
    not_negative,
    reduce,
)
from oaxe.losses.assignment import linear_assignment
from oaxe.losses.linear_softmax import as_linear_would, layer_logsumexp
from oaxe.losses.oaxe import check_truncation, least_probability
from oaxe.losses.own_words import own_words, sentence_scores
from oaxe.losses.xe import check_label_smoothing, uniform_losses


class NgramOaXE(NamedTuple):
    """What the loss is made of, for each position."""

    losses: Tensor  # (batch, length)
    truncated: Tensor  # (batch, length), 0 to 1: how much of it was too improbable to count


def ngram_oaxe_loss(
    logits: Tensor,
    target: Tensor,
    *,
    n: int = 2,
    truncation: float = 0.0,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Cross entropy of the best order of the target's n-grams, the words within them in order.

    .. math::
        L = \min_\pi -\sum_{i=1}^{N-n+1} \sum_{k=0}^{n-1}
        \frac{1}{c_{i+k}} \log P_{i+k}(y_{\pi(i)+k})

    for permutations :math:`\pi` of the windows of n words; :math:`c_t` is how many windows a
    position is in, n but for those at both ends. A position learns the mean of the words that its
    windows put there. The matching is exact and carries no gradient. A target of fewer than n words
    is one window.

    Args:
        logits: ``(batch, length, vocab)``; half precision is computed in float32.
        target: y, ``(batch, length)`` token ids.
        n: words of a window; 1 is :func:`oaxe_loss`, as many as the target has is :func:`xe_loss`.
        truncation: a word of a window whose probability is not above it contributes nothing, see
            :func:`oaxe_loss`.
        ignore_index: targets of this value take no part, nor do their positions: windows go past
            them.
        label_smoothing: weight of the uniform distribution in the target, in [0, 1].
        reduction: ``"mean"`` divides by the number of targets that are not ignored, ``"sum"``, or
            ``"none"`` for ``(batch, length)``, one value a position.

    Example:
        >>> logits = torch.eye(4)[[2, 3, 0, 1]].unsqueeze(0) * 9
        >>> target = torch.tensor([[0, 1, 2, 3]])  # two phrases, the other way round
        >>> [round(ngram_oaxe_loss(logits, target, n=n).item(), 2) for n in (1, 2, 4)]
        [0.0, 2.25, 9.0]
    """
    options = check(n, truncation, label_smoothing)
    targets = check_targets(logits, target, ignore_index, same_length=True)
    words = targets.words.gather(1, kept_first(targets.mask))
    log_probs = F.log_softmax(at_least_float32(logits), dim=-1)
    costs = -own_words(log_probs, words)
    found = _matched(costs, -log_probs.mean(2), targets, *options)
    return reduce(found.losses, targets, reduction)


def linear_ngram_oaxe_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    n: int = 2,
    truncation: float = 0.0,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`ngram_oaxe_loss` of ``F.linear(input, linear_weight, linear_bias)``, without logits.

    Example:
        >>> hidden = torch.eye(4)[[2, 3, 0, 1]].unsqueeze(0) * 9
        >>> linear_ngram_oaxe_loss(hidden, torch.eye(4), torch.tensor([[0, 1, 2, 3]]))
        tensor(2.2504)
    """
    how = n, truncation, label_smoothing, linear_bias, ignore_index, capacity
    found, targets = linear_ngram_oaxe(input, linear_weight, target, *how)
    return reduce(found.losses, targets, reduction)


def linear_ngram_oaxe(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    n: int,
    truncation: float,
    label_smoothing: float,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    capacity: int | None = None,
) -> tuple[NgramOaXE, Targets]:
    """The same before it is reduced, with what was truncated."""
    options = check(n, truncation, label_smoothing)
    layer = as_linear_would(input, linear_weight, linear_bias)
    targets = check_targets(layer.stand_in, target, ignore_index, same_length=True)
    words = targets.words.gather(1, kept_first(targets.mask))
    normalizer = layer_logsumexp(layer, targets.mask, capacity)
    costs = not_negative(normalizer.unsqueeze(2) - sentence_scores(layer, words))
    smooth = (
        not_negative(uniform_losses(layer, None, normalizer)) if label_smoothing else normalizer
    )
    return _matched(costs, smooth, targets, *options), targets


def check(n: int, truncation: float, label_smoothing: float) -> tuple[int, float, float]:
    check_n(n)
    check_truncation(truncation)
    check_label_smoothing(label_smoothing)
    return n, truncation, label_smoothing


def _matched(
    costs: Tensor, smooth: Tensor, targets: Targets, n: int, truncation: float, smoothing: float
) -> NgramOaXE:
    """Of -log-probabilities ``(batch, position, word)``, ignored words last, and the mean of those
    of all words, ``(batch, position)``."""
    length, order = costs.shape[1], kept_first(targets.mask)
    costs = costs.gather(1, order.unsqueeze(2).expand_as(costs))  # positions likewise
    smooth, n_words = smooth.gather(1, order), targets.mask.sum(1)
    n = max(1, min(n, length))
    weight, n_windows = _weights(n_words, n, length, costs.dtype)
    window = leading(n_windows, length - n + 1)
    match = best_windows(costs, weight, window, n)
    least = least_probability(truncation, costs.dtype)
    losses = truncated = torch.zeros_like(weight)
    for k in range(n):  # the k-th word of each window
        here = slice(k, k + window.shape[1])
        cost = costs[:, here].gather(2, (match + k).unsqueeze(2)).squeeze(2)
        counted = torch.where(window, weight[:, here], 0)
        dropped = cost.detach().neg().exp() <= least  # NaN is kept, and seen
        loss = torch.lerp(cost, smooth[:, here], smoothing) if smoothing else cost
        loss = torch.where(dropped | (counted == 0), 0, loss * counted)
        around = k, n - 1 - k
        losses = losses + F.pad(loss, around)
        truncated = truncated + F.pad(counted * dropped, around)
    return NgramOaXE(*(torch.zeros_like(x).scatter(1, order, x) for x in (losses, truncated)))


def _weights(n_words: Tensor, n: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One over the number of windows that each position is in, 0 for no position; ``(batch,
    length)``. And how many windows there are, ``(batch,)``."""
    position = torch.arange(length, device=n_words.device)
    n_windows = (n_words - n + 1).clamp(min=1)
    last = torch.minimum(position, n_windows.unsqueeze(1) - 1)
    within = last - (position - n + 1).clamp(min=0) + 1
    weight = leading(n_words, length).to(dtype) / within.clamp(min=1)
    return weight, n_windows


@torch.no_grad()
def best_windows(costs: Tensor, weight: Tensor, window: Tensor, n: int) -> Tensor:
    """``(batch, windows)``: for each window of positions, the window of words.

    Args:
        costs: ``(batch, position, word)``.
        weight: ``(batch, position)``.
        window: ``(batch, windows)`` bool: True for those that there are.
        n: words of a window.
    """
    weighted = torch.where(weight.unsqueeze(2) > 0, costs * weight.unsqueeze(2), 0)
    size = window.shape[1]
    total = weighted.new_zeros(len(costs), size, size)
    for k in range(n):
        total += weighted[:, k : k + size, k : k + size]
    return linear_assignment(total, window)
