"""What all losses share: one check of the arguments, one way to reduce."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


def check_targets(
    logits: Tensor, target: Tensor, ignore_index: int, *, one_place_a_word: bool
) -> tuple[Tensor, Tensor]:
    """The target in int64 and a bool mask, True where it is not ignored; an error if one is off."""
    check_tensors(logits=logits, target=target)
    if logits.dim() != 3 or not logits.is_floating_point():
        raise ValueError(
            "logits must be floating point of shape (batch, length, vocab), not flattened; "
            f"got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    if target.dim() != 2 or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(
            "target must be token ids of shape (batch, length), such as target.long() has; "
            f"got {target.dtype} of shape {tuple(target.shape)}"
        )
    if logits.shape[0] != target.shape[0]:
        raise ValueError(f"predictions have batch size {logits.shape[0]}, target {target.shape[0]}")
    if one_place_a_word and logits.shape[1] != target.shape[1]:
        raise ValueError(
            f"this loss needs one prediction a target: predictions have length {logits.shape[1]} "
            f"(of vocabulary {logits.shape[2]}, the last axis), target {target.shape[1]}; fill up "
            "the target with an id that stands for nothing, not with ignore_index, which would "
            "remove places as well; or take axe_loss or ctc_loss"
        )
    target = target.long()  # a narrow type could not hold ignore_index
    counts = target != ignore_index
    # Looking at the values would make a GPU wait and break a compiled graph.
    if target.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = counts & ((target < 0) | (target >= logits.shape[2]))
        if wrong.any():
            row, place = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"target[{row}, {place}] is {int(target[row, place])}, outside the vocabulary "
                f"0..{logits.shape[2] - 1} and not ignore_index ({ignore_index})"
            )
    return target, counts


def predictions_that_count(logits: Tensor, logit_mask: Tensor | None) -> Tensor:
    """``(batch, predictions)`` bool: the mask that was given, or all True."""
    if logit_mask is None:
        return logits.new_ones(logits.shape[:2], dtype=torch.bool)
    check_mask("logit_mask", logit_mask, logits.shape[:2])
    return logit_mask


def check_tensors(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, Tensor):
            hint = f"; give {name}.weight" if isinstance(value, torch.nn.Module) else ""
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}{hint}")


def check_mask(name: str, mask: Tensor | None, shape: Sequence[int]) -> None:
    if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) != tuple(shape)):
        raise ValueError(
            f"{name} must be bool of shape {tuple(shape)}, True for what takes part, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )


def check_blank(logits: Tensor, blank: int) -> None:
    if not 0 <= blank < logits.shape[2]:
        raise ValueError(f"blank is {blank}, outside the vocabulary 0..{logits.shape[2] - 1}")


def kept_first(mask: Tensor) -> Tensor:
    """``(batch, n)`` int64: positions that count, in their order, before those that do not."""
    return mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)


def leading(counts: Tensor, length: int) -> Tensor:
    """``(batch, length)`` bool: True for the first ``counts[b]`` positions."""
    return torch.arange(length, device=counts.device) < counts.unsqueeze(1)


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def reduce(losses: Tensor, counts: Tensor, reduction: Reduction) -> Tensor:
    """``mean`` divides by the number of targets that count: not finite if there is none."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.sum() / counts.sum()
    raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
