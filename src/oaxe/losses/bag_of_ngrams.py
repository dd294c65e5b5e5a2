"""Bag of n-grams: which n-grams a sentence has, whatever their place.

Shao et al., 2020: the distance between the bag of n-grams of the target and the one that the model
predicts on average. Positions are independent, so that the expected count of an n-gram is the sum
over its places of products of n probabilities.
"""

from functools import reduce as fold
from operator import mul

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    Targets,
    at_least_float32,
    check_n,
    check_targets,
    not_negative,
    prediction_mask,
    reduce,
)
from oaxe.losses.linear_softmax import as_linear_would
from oaxe.losses.own_words import own_words, sentence_costs


def bag_of_ngrams_loss(
    logits: Tensor,
    target: Tensor,
    *,
    n: int = 2,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Half the distance between the n-grams of the target and those expected of the model.

    .. math::
        L_{BoN} = \frac{1}{2} \sum_g |E_g - c_g| = \frac{T_n + N_n}{2} - \sum_g \min(E_g, c_g),
        \quad E_g = \sum_t \prod_{k=1}^{n} P_{t+k-1}(g_k)

    over all n-grams g, which occur :math:`c_g` times among the :math:`N_n` of the target;
    predictions have :math:`T_n`. An n-gram that is expected often enough has no gradient. The paper
    divides the distance of each sentence by the number of its n-grams; ``"mean"`` divides the sum.

    Args:
        logits: ``(batch, predictions, vocab)``; half precision is computed in float32.
        target: ``(batch, targets)`` token ids; their number may differ from that of predictions.
        n: how many words an n-gram has.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part. Default: all
            of them, padding included, so pass it for sentences of different lengths.
        ignore_index: targets of this value take no part, nor do n-grams with one of them.
        reduction: ``"mean"`` divides by the number of n-grams of the targets, ``"sum"``, or
            ``"none"`` for one value a sentence, ``(batch,)``.

    Example:
        >>> logits = 9 * torch.eye(5)[[3, 0, 1, 2]].unsqueeze(0)  # 3, 0, 1, 2
        >>> target = torch.tensor([[0, 1, 2, 3]])
        >>> bag_of_ngrams_loss(logits, target, n=1)
        tensor(0.0001)
        >>> bag_of_ngrams_loss(logits, target, n=2)  # (0, 1) and (1, 2), but not (2, 3)
        tensor(0.3340)
    """
    targets, mask = ngram_targets(logits, target, n, logit_mask, ignore_index)
    probability = own_words(torch.softmax(at_least_float32(logits), -1), targets.words)
    return ngram_losses(probability, targets, mask, n, reduction)


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
    targets, mask = ngram_targets(layer.stand_in, target, n, logit_mask, ignore_index)
    probability = sentence_costs(layer, targets.words, mask, capacity).neg().exp()
    return ngram_losses(probability, targets, mask, n, reduction)


def ngram_targets(
    logits: Tensor, target: Tensor, n: int, logit_mask: Tensor | None, ignore_index: int
) -> tuple[Targets, Tensor]:
    """The targets, and the mask of predictions."""
    check_n(n)
    targets = check_targets(logits, target, ignore_index, same_length=False)
    return targets, prediction_mask(logits, logit_mask)


def ngram_losses(
    probability: Tensor, targets: Targets, mask: Tensor, n: int, reduction: Reduction
) -> Tensor:
    """The reduced loss.

    Args:
        probability: ``(batch, predictions, targets)``, of each sentence's own words.
        targets: ``(batch, targets)``.
        mask: ``(batch, predictions)`` bool, True for those that take part.
        n: how many words an n-gram has.
        reduction: see :func:`bag_of_ngrams_loss`.
    """
    n = min(n, 1 + max(targets.mask.shape[1], mask.shape[1]))  # one that neither has
    # An n-gram begins at every word and at every prediction; those that run over the end are none.
    words, real = (F.pad(x, (0, n)).unfold(1, n, 1) for x in targets)  # (batch, targets + 1, n)
    real = real.all(2)
    predicted = F.pad(mask, (0, n)).unfold(1, n, 1).all(2).sum(1)  # (batch,)
    same = (words.unsqueeze(2) == words.unsqueeze(1)).all(3) & real.unsqueeze(1)
    count = same.sum(2).clamp(min=1)  # of the n-gram that begins here
    probability = F.pad(probability.masked_fill(~mask.unsqueeze(2), 0), (0, n, 0, n))
    places, grams = mask.shape[1], real.shape[1]
    parts = (probability[:, k : k + places, k : k + grams] for k in range(n))
    expected = fold(mul, parts).sum(1)  # (batch, targets + 1)
    # The c occurrences of an n-gram share what it has in common with the prediction.
    common = (expected.minimum(count) / count).masked_fill(~real, 0)
    losses = (predicted + real.sum(1)) / 2 - common.sum(1)
    return reduce(not_negative(losses), Targets(targets.words, real), reduction)
