"""What all losses share: one check of the arguments, one way to reduce, the way to a kernel."""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from numbers import Integral, Real
from types import ModuleType
from typing import Literal, NamedTuple, NoReturn, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Targets(NamedTuple):
    words: Tensor  # (batch, length) int64: 0 where the target is ignored
    mask: Tensor  # (batch, length) bool: False where the target is ignored


def check_targets(
    logits: Tensor, target: Tensor, ignore_index: int, *, same_length: bool
) -> Targets:
    """The target as token ids and a mask; an error if a shape, dtype or id is wrong."""
    check_tensors(logits=logits, target=target)
    if logits.dim() != 3 or not is_float(logits):
        raise ValueError(
            "logits must be floating point of shape (batch, length, vocab), not flattened; "
            f"got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    if logits.shape[2] == 0:
        raise ValueError(f"the vocabulary is empty: logits are of shape {tuple(logits.shape)}")
    if target.dim() != 2 or not is_whole(target):
        raise ValueError(
            "target must be token ids of shape (batch, length), such as target.long() has; "
            f"got {target.dtype} of shape {tuple(target.shape)}"
        )
    check_devices("predictions", logits, target=target)
    if logits.shape[0] != target.shape[0]:
        raise ValueError(f"predictions have batch size {logits.shape[0]}, target {target.shape[0]}")
    if same_length and logits.shape[1] != target.shape[1]:
        raise ValueError(
            f"this loss needs one prediction a target: predictions have length {logits.shape[1]} "
            f"(of vocabulary {logits.shape[2]}, the last axis), target {target.shape[1]}; fill up "
            "the target with an id that stands for nothing, not with ignore_index, which would "
            "remove positions as well; or take axe_loss or ctc_loss"
        )
    if not torch.compiler.is_compiling():
        _check_ignore_index(ignore_index)
        _warn_of_probabilities(logits)
    target = target.long()  # a narrow type could not hold ignore_index
    mask = target != ignore_index
    # Looking at the values would make a GPU wait and break a compiled graph.
    if target.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = mask & ((target < 0) | (target >= logits.shape[2]))
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"target[{row}, {position}] is {int(target[row, position])}, outside the "
                f"vocabulary 0..{logits.shape[2] - 1} and not ignore_index ({ignore_index})"
            )
    return Targets(target.masked_fill(~mask, 0), mask)


def _check_ignore_index(ignore_index: int) -> None:
    advice = "; to ignore no target, leave it at -100, which is no token id"
    check_whole("ignore_index", ignore_index, advice)
    if not -(2**63) <= int(ignore_index) < 2**63:
        raise ValueError(f"ignore_index must be a number of 64 bits, got {ignore_index}{advice}")


def _warn_of_probabilities(logits: Tensor) -> None:
    """From the first row; on the CPU, where looking at values is cheap."""
    if logits.device.type != "cpu" or logits.stride(-1) == 0 or logits.shape[-1] < 2:
        return  # the linear losses pass a view without values
    first = logits.detach()[:1, :1].flatten().float()
    if abs(float(first.sum()) - 1) < 1e-3 and bool((first > 0).all()):
        warnings.warn(
            "logits sum to 1 in their first row, as probabilities do; the loss takes what comes "
            "before the softmax, or log-probabilities",
            stacklevel=4,
        )


def check_class_weights(weight: Tensor | None, logits: Tensor) -> Tensor | None:
    """``(vocab,)`` without gradient, of the dtype that the loss of the logits is computed in."""
    if weight is None:
        return None
    check_tensors(weight=weight)
    vocab = logits.shape[-1]
    if weight.shape != (vocab,) or not is_float(weight):
        raise ValueError(
            "weight holds one floating point weight for each class of the vocabulary: it must be "
            f"of shape ({vocab},), got {weight.dtype} of shape {tuple(weight.shape)}"
        )
    check_devices("predictions", logits, weight=weight)
    return weight.detach().to(torch.promote_types(logits.dtype, torch.float32))


def prediction_mask(logits: Tensor, logit_mask: Tensor | None) -> Tensor:
    """``(batch, predictions)`` bool: the mask that was given, or all True."""
    if logit_mask is None:
        return logits.new_ones(logits.shape[:2], dtype=torch.bool)
    check_mask("logit_mask", logit_mask, logits.shape[:2])
    check_devices("predictions", logits, logit_mask=logit_mask)
    return logit_mask


def check_tensors(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, Tensor):
            hint = f"; give {name}.weight" if isinstance(value, torch.nn.Module) else ""
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}{hint}")
        if value.layout != torch.strided:
            raise ValueError(f"{name} must be dense, got {value.layout}; give {name}.to_dense()")


def is_float(x: Tensor) -> bool:
    return x.dtype in FLOATS


def is_whole(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.is_quantized or x.dtype == torch.bool)


def check_devices(name: str, tensor: Tensor, **others: Tensor) -> None:
    for other, value in others.items():
        if value.device != tensor.device:
            raise ValueError(
                f"{name} are on {tensor.device}, {other} on {value.device}; move one of them, for "
                f"example {other}.to({str(tensor.device)!r})"
            )


def check_number(name: str, value: object) -> None:
    if not _is_number(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")


def check_whole(name: str, value: object, advice: str = "") -> None:
    if not _is_number(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}{advice}")


def _is_number(value: object, kind: type) -> bool:
    """Also in a tensor without dimensions."""
    if torch.compiler.is_compiling():
        return True
    if isinstance(value, Tensor) and value.dim() == 0 and not value.is_meta:
        value = value.item()
    return isinstance(value, kind)


def check_n(n: int) -> None:
    check_whole("n", n)
    if n < 1:
        raise ValueError(f"an n-gram has at least one word, got n = {n}")


def check_mask(name: str, mask: Tensor | None, shape: Sequence[int]) -> None:
    if mask is None:
        return
    check_tensors(**{name: mask})
    if mask.dtype != torch.bool or tuple(mask.shape) != tuple(shape):
        raise ValueError(
            f"{name} must be bool of shape {tuple(shape)}, True for what takes part, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )


def check_blank(logits: Tensor, blank: int) -> None:
    check_whole("blank", blank)
    if not 0 <= blank < logits.shape[2]:
        raise ValueError(f"blank is {blank}, outside the vocabulary 0..{logits.shape[2] - 1}")


def kept_first(mask: Tensor) -> Tensor:
    """``(batch, n)`` int64: the positions that are True, in their order, before the others."""
    return mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)


def leading(lengths: Tensor, length: int) -> Tensor:
    """``(batch, length)`` bool: True for the first ``lengths[b]`` positions."""
    return torch.arange(length, device=lengths.device) < lengths.unsqueeze(1)


def unrounded(device: torch.device) -> AbstractContextManager[object]:
    """Autocast would round products to half precision; meta tensors have none."""
    kind = device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def no_second_derivative(*_: object) -> NoReturn:
    raise RuntimeError("this loss has no second derivative")


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def not_negative(cost: Tensor) -> Tensor:
    """0 where rounding has made a cost negative; the gradient is that of the cost everywhere."""
    return torch.where(cost < 0, cost - cost.detach(), cost)


def reduce(
    losses: Tensor, targets: Targets, reduction: Reduction, weight: Tensor | None = None
) -> Tensor:
    """``mean`` divides by the number of targets or their summed weight: NaN if there is none."""
    if not isinstance(reduction, str) or reduction not in get_args(Reduction):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    counted = targets.mask if weight is None else weight[targets.words] * targets.mask
    return losses.sum() / counted.sum()


def triton_kernels(name: str) -> ModuleType | None:
    """A module of :mod:`oaxe.losses.kernels`; None where there is no Triton."""
    try:
        return import_module(f"oaxe.losses.kernels.{name}")
    except ImportError:
        return None
