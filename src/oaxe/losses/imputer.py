"""The Imputer's loss: CTC over those alignments alone that agree with the labels that are shown.

Saharia et al., "Non-Autoregressive Machine Translation with Latent Alignments" (2020).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import Reduction, at_least_float32, reduce
from oaxe.losses.ctc import ctc_losses, ctc_tokens
from oaxe.losses.fused import sentence_costs, shape_of_logits
from oaxe.losses.linear_softmax import as_linear_would


def imputer_loss(
    logits: Tensor,
    target: Tensor,
    shown: Tensor,
    *,
    blank: int,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    zero_infinity: bool = True,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""CTC of the alignments that have the labels that the model was shown.

    .. math:: L = -\log \sum_{a \in \beta(\tilde a, y)} \prod_j P_j(a_j)

    where :math:`\beta(\tilde a, y)` holds the label sequences that give y once repeats are
    collapsed and blanks removed, and that are equal to :math:`\tilde a` where it has a label. With
    none it is :func:`ctc_loss`; with all, the cross entropy of one alignment.

    Args:
        logits: ``(batch, predictions, vocab)``.
        target: ``(batch, targets)`` token ids, none of them the blank.
        shown: :math:`\tilde a`, ``(batch, predictions)``: a word of the target, the blank, or
            ``ignore_index`` where nothing is shown.
        blank, logit_mask, zero_infinity, reduction: as for :func:`ctc_loss`. A sentence of which no
            alignment agrees with what is shown is impossible.
        ignore_index: targets of this value take no part.

    Example:
        >>> logits, target = torch.zeros(1, 3, 4), torch.tensor([[0, 1]])
        >>> ctc_loss = imputer_loss(logits, target, torch.full((1, 3), -100), blank=3)
        >>> shown = torch.tensor([[-100, 3, -100]])  # one of the five alignments: 0, blank, 1
        >>> imputer_loss(logits, target, shown, blank=3) - ctc_loss
        tensor(0.8047)
    """
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    log_probs = F.log_softmax(at_least_float32(logits), dim=-1)
    emissions = log_probs.gather(2, tokens.unsqueeze(1).expand(-1, logits.shape[1], -1))
    emissions = _as_shown(emissions, tokens, shown, ignore_index)
    return reduce(ctc_losses(emissions, tokens, targets, mask, zero_infinity), targets, reduction)


def linear_imputer_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    shown: Tensor,
    *,
    blank: int,
    linear_bias: Tensor | None = None,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    zero_infinity: bool = True,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    """:func:`imputer_loss` of ``F.linear(input, linear_weight, linear_bias)``, without its logits.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> shown = torch.tensor([[0, 2, -100]])
        >>> linear_imputer_loss(hidden, torch.eye(3), torch.tensor([[0, 1]]), shown, blank=2)
        tensor(0.0004)
    """
    layer = as_linear_would(input, linear_weight, linear_bias)
    logits = shape_of_logits(layer)
    targets, tokens, mask = ctc_tokens(logits, target, blank, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, tokens, mask, capacity)
    emissions = _as_shown(emissions, tokens, shown, ignore_index)
    return reduce(ctc_losses(emissions, tokens, targets, mask, zero_infinity), targets, reduction)


def _as_shown(emissions: Tensor, tokens: Tensor, shown: Tensor, ignore_index: int) -> Tensor:
    """Where a label is shown, no other can be emitted."""
    if shown.shape != emissions.shape[:2]:
        raise ValueError(
            f"shown must hold a label for each prediction, {tuple(emissions.shape[:2])}, and "
            f"ignore_index ({ignore_index}) where none is shown; got {tuple(shown.shape)}"
        )
    other = (shown != ignore_index).unsqueeze(2) & (tokens.unsqueeze(1) != shown.unsqueeze(2))
    return emissions.masked_fill(other, -torch.inf)
