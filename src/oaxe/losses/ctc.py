"""Connectionist temporal classification (CTC): all monotone alignments at once, by torch's CTC."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    at_least_float32,
    check_blank,
    kept_first,
    predictions_that_count,
    reduce,
    targets_that_count,
)


def ctc_loss(
    logits: Tensor,
    target: Tensor,
    *,
    blank: int,
    logit_mask: Tensor | None = None,
    ignore_index: int = -100,
    zero_infinity: bool = True,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""CTC with the manners of the other losses: logits in, batch first, masks instead of lengths.

    .. math:: L_{CTC} = -\log \sum_{a \in \beta(y)} \prod_j P_j(a_j)

    where :math:`\beta(y)` holds all label sequences that give y once repeats are collapsed and
    blanks removed.

    Args:
        logits: ``(batch, predictions, vocab)``, *not* log-probabilities; half precision is computed
            in float32.
        target: ``(batch, targets)`` token ids, none of them the blank.
        blank: id of the blank symbol.
        logit_mask: ``(batch, predictions)`` bool, True for predictions that take part. Default: all
            of them, padding included, so pass it for sentences of different lengths.
        ignore_index: targets of this value take no part.
        zero_infinity: a target is impossible if it needs more predictions than there are: one a
            word, and one more between equal neighbours. True: it contributes 0 and no gradient
            (but stays in the denominator of ``"mean"``). False: its loss is infinite.
        reduction: ``"mean"`` divides by the number of targets that are not ignored (torch's own
            CTC takes a mean of means), ``"sum"``, or ``"none"`` for one value a sentence.

    torch implements no second derivative for CTC, and copies the lengths to the host: on a GPU that
    waits for the device once a call, and under ``torch.compile`` the graph breaks there.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> ctc_loss(logits, torch.tensor([[0, 1]]), blank=2)
        tensor(0.0002)
    """
    counts = targets_that_count(logits, target, ignore_index, one_place_a_word=False)
    check_blank(logits, blank)
    takes_part = predictions_that_count(logits, logit_mask)
    if target.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = (counts & (target == blank)).any(dim=1).nonzero().flatten().tolist()
        if wrong:
            raise ValueError(f"target holds the blank ({blank}) in batch rows {wrong[:10]}")
    if logits.shape[0] == 0:
        return reduce(logits.sum(dim=(1, 2)), counts, reduction)
    if logits.shape[1] == 0:
        logits = F.pad(logits, (0, 0, 0, 1))  # torch wants a place, even if it takes no part
    elif logit_mask is not None:
        logits = logits.gather(1, kept_first(takes_part).unsqueeze(2).expand_as(logits))
    words = target.long().masked_fill(~counts, 0).gather(1, kept_first(counts))
    log_probs = F.log_softmax(at_least_float32(logits), dim=-1).transpose(0, 1)
    losses = _torch_ctc(log_probs, words, takes_part.sum(1), counts.sum(1), blank, zero_infinity)
    return reduce(losses, counts, reduction)


# torch's CTC reads the lengths on the host, which no compiled graph can hold.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _torch_ctc(
    log_probs: Tensor,
    words: Tensor,
    n_predictions: Tensor,
    n_targets: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    return F.ctc_loss(
        log_probs, words, n_predictions, n_targets, blank, "none", zero_infinity=zero_infinity
    )
