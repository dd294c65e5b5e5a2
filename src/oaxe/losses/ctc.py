"""Connectionist temporal classification (CTC): the sum over all monotone alignments, by torch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    Reduction,
    at_least_float32,
    check_blank,
    check_targets,
    kept_first,
    leading,
    prediction_mask,
    reduce,
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
    r"""CTC with the arguments of the other losses: logits, batch first, masks instead of lengths.

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
    waits for the device once a call.

    Example:
        >>> logits = torch.eye(3)[[0, 2, 1]].unsqueeze(0) * 9  # 0, blank, 1
        >>> ctc_loss(logits, torch.tensor([[0, 1]]), blank=2)
        tensor(0.0002)
    """
    targets = check_targets(logits, target, ignore_index, same_length=False)
    check_blank(logits, blank)
    mask = prediction_mask(logits, logit_mask)
    if logits.shape[0] == 0:
        return reduce(logits.sum(dim=(1, 2)), targets, reduction)
    if logits.shape[1] == 0:
        logits = F.pad(logits, (0, 0, 0, 1))  # torch wants a prediction, even if it takes no part
    elif logit_mask is not None:
        logits = logits.gather(1, kept_first(mask).unsqueeze(2).expand_as(logits))
    words = targets.words.gather(1, kept_first(targets.mask))
    log_probs = F.log_softmax(at_least_float32(logits), dim=-1).transpose(0, 1)
    differentiate = torch.is_grad_enabled() and log_probs.requires_grad
    n_targets = targets.mask.sum(1)
    losses, _ = _ctc(log_probs, words, mask.sum(1), n_targets, blank, zero_infinity, differentiate)
    return reduce(losses, targets, reduction)


# A registered operator around the two that F.ctc_loss and its backward call, because they read the
# lengths on the host, which no compiled graph can hold. The gradient is found on the way: sentences
# do not mix, so backward only scales it.
@torch.library.custom_op("oaxe::ctc", mutates_args=())
def _ctc(
    log_probs: Tensor,
    words: Tensor,
    n_predictions: Tensor,
    n_targets: Tensor,
    blank: int,
    zero_infinity: bool,
    differentiate: bool,
) -> tuple[Tensor, Tensor]:
    if words.device.type == "cpu":
        _check_words(words, n_targets, blank, vocab=log_probs.shape[2])
    given = log_probs, words, n_predictions, n_targets
    losses, log_alpha = torch.ops.aten._ctc_loss.Tensor(*given, blank, zero_infinity)
    gradient = log_probs.new_empty(0)
    if differentiate:
        gradient = torch.ops.aten._ctc_loss_backward.Tensor(
            torch.ones_like(losses), *given, losses, log_alpha, blank, zero_infinity
        )
    if zero_infinity:
        losses = losses.masked_fill(losses == torch.inf, 0)
    return losses.clamp(min=0), gradient.contiguous()  # all alignments may add up to 1.0000001


@_ctc.register_fake
def _(log_probs: Tensor, words: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    differentiate = others[-1]
    losses = log_probs.new_empty(log_probs.shape[1])
    return losses, log_probs.new_empty(log_probs.shape if differentiate else 0)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, of_losses: Tensor | None, of_gradient: Tensor | None) -> tuple[Any, ...]:
    if of_gradient is not None:
        raise RuntimeError("ctc_loss has no second derivative: torch does not implement it")
    (gradient,) = ctx.saved_tensors
    scaled = None if of_losses is None else gradient * of_losses.view(1, -1, 1)
    return scaled, None, None, None, None, None, None


_ctc.register_autograd(_backward, setup_context=_remember)


def _check_words(words: Tensor, n_targets: Tensor, blank: int, vocab: int) -> None:
    """torch would read outside its memory, or train on nonsense."""
    real = leading(n_targets, words.shape[1])
    for wrong, what in (
        (words == blank, f"the blank ({blank})"),
        ((words < 0) | (words >= vocab), f"a token outside the vocabulary 0..{vocab - 1}"),
    ):
        rows = (wrong & real).any(dim=1).nonzero().flatten().tolist()
        if rows:
            raise ValueError(f"target holds {what} in batch rows {rows[:10]}")
