"""Several references of a sentence: the CTC loss of each, and which of them to learn from.

Shao et al., "One Reference Is Not Enough: Diverse Distillation with Reference Selection for
Non-Autoregressive Translation" (2022).
"""

import torch
from torch import Tensor

from oaxe.losses.arguments import not_negative
from oaxe.losses.ctc import ctc_losses, ctc_tokens
from oaxe.losses.linear_softmax import as_linear_would, layer_logsumexp
from oaxe.losses.own_words import sentence_scores

UNTIL_ANY = 2 / 3  # of the training: from the mean of all references to any of them


def linear_reference_losses(
    input: Tensor,
    linear_weight: Tensor,
    references: Tensor,
    *,
    blank: int,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    capacity: int | None = None,
) -> Tensor:
    """``(batch, references)``: :func:`ctc_loss` of each; the softmax is computed once for all.

    Infinite for a reference without words, and for one that is impossible.

    Args:
        input, linear_weight, capacity: see :mod:`oaxe.losses`.
        references: ``(batch, references, targets)`` token ids, none of them the blank.
        blank, logit_mask, ignore_index: as for :func:`ctc_loss`.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> references = torch.tensor([[[0, 1], [1, 0], [-100, -100]]])
        >>> linear_reference_losses(hidden, torch.eye(3), references, blank=2)
        tensor([[4.9420e-04, 1.8000e+01,        inf]])
    """
    layer = as_linear_would(input, linear_weight, None)
    normalizer = None
    losses = []
    for target in references.unbind(1):
        targets, tokens, mask = ctc_tokens(layer.stand_in, target, blank, logit_mask, ignore_index)
        if normalizer is None:
            normalizer = layer_logsumexp(layer, mask, capacity).unsqueeze(2)
        emissions = -not_negative(normalizer - sentence_scores(layer, tokens))
        found = ctc_losses(emissions, tokens, targets, mask, zero_infinity=False)
        losses.append(found.masked_fill(~targets.mask.any(1), torch.inf))
    return torch.stack(losses, 1)


def selected_losses(losses: Tensor, share: Tensor) -> Tensor:
    r"""``(batch,)``: from all references, by any of them, to the easiest one.

    .. math:: \frac{1}{R} \sum_r \ell_r \;\to\; -\log \sum_r e^{-\ell_r} \;\to\; \min_r \ell_r

    Linear in between: the second is reached after two thirds of the training.

    Args:
        losses: ``(batch, references)``; infinite ones take no part. 0 if all are.
        share: of the training that is done, 0 to 1, without dimensions.

    Example:
        >>> losses = torch.tensor([[1.0, 3.0], [2.0, torch.inf]])
        >>> selected_losses(losses, torch.tensor(0.0)), selected_losses(losses, torch.tensor(1.0))
        (tensor([2., 2.]), tensor([1., 2.]))
    """
    possible = losses != torch.inf  # NaN is, and is seen
    some = possible.any(1)
    losses = losses.where(some.unsqueeze(1), 0)  # so that nothing below is infinite
    mean = losses.where(possible, 0).sum(1) / possible.sum(1).clamp(min=1)
    any_of_them, easiest = -torch.logsumexp(-losses, 1), losses.amin(1)
    to_any = (share / UNTIL_ANY).clamp(max=1).to(losses.dtype)
    to_easiest = ((share - UNTIL_ANY) / (1 - UNTIL_ANY)).clamp(min=0).to(losses.dtype)
    mixed = (1 - to_any) * mean + (to_any - to_easiest) * any_of_them + to_easiest * easiest
    return mixed.where(some, 0)
