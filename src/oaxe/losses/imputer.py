"""The Imputer's loss: CTC over those alignments alone that agree with the labels that are shown.

Saharia et al., "Non-Autoregressive Machine Translation with Latent Alignments" (2020).
"""

import torch
from torch import Tensor

from oaxe.losses.arguments import Reduction, check_devices, check_tensors, is_whole, reduce
from oaxe.losses.ctc import ctc_losses, ctc_tokens
from oaxe.losses.linear_softmax import as_linear_would
from oaxe.losses.own_words import sentence_costs


def linear_imputer_loss(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    shown: Tensor,
    *,
    blank: int,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    capacity: int | None = None,
) -> Tensor:
    r"""CTC of the alignments that have the labels that the model was shown.

    .. math:: L = -\log \sum_{a \in \beta(\tilde a, y)} \prod_j P_j(a_j)

    where :math:`\beta(\tilde a, y)` holds the label sequences that give y once repeats are
    collapsed and blanks removed, and that are equal to :math:`\tilde a` where it has a label. With
    none it is :func:`ctc_loss`; with all, the cross entropy of one alignment.

    Args:
        input, linear_weight, capacity: see :mod:`oaxe.losses`.
        target: ``(batch, targets)`` token ids, none of them the blank.
        shown: :math:`\tilde a`, ``(batch, predictions)``: a word of the target, the blank, or
            ``ignore_index`` where nothing is shown.
        blank, logit_mask, reduction: as for :func:`ctc_loss`. A sentence of which no alignment
            agrees with what is shown is impossible, and contributes 0.
        ignore_index: targets of this value take no part.

    Example:
        >>> hidden = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> shown = torch.tensor([[0, 2, -100]])
        >>> linear_imputer_loss(hidden, torch.eye(3), torch.tensor([[0, 1]]), shown, blank=2)
        tensor(0.0004)
    """
    layer = as_linear_would(input, linear_weight, None)
    targets, tokens, mask = ctc_tokens(layer.stand_in, target, blank, logit_mask, ignore_index)
    emissions = -sentence_costs(layer, tokens, mask, capacity)
    check_tensors(shown=shown)
    check_devices("predictions", emissions, shown=shown)
    if shown.shape != emissions.shape[:2] or not is_whole(shown):
        raise ValueError(
            f"shown must hold a label for each prediction, {tuple(emissions.shape[:2])}, and "
            f"ignore_index ({ignore_index}) where none is shown; got {shown.dtype} of shape "
            f"{tuple(shown.shape)}"
        )
    shown = shown.long()
    # Where a label is shown, no other can be emitted.
    other = (shown != ignore_index).unsqueeze(2) & (tokens.unsqueeze(1) != shown.unsqueeze(2))
    emissions = emissions.masked_fill(other, -torch.inf)
    return reduce(ctc_losses(emissions, tokens, targets, mask, True), targets, reduction)
