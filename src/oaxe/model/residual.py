"""What stands between the blocks of a post-norm Transformer: dropout, sum, normalisation."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.model.attention import is_large

try:
    from oaxe.model.kernels import residual as kernel
except ImportError:  # no Triton
    kernel = None  # type: ignore[assignment]


def add_and_normalise(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, eps: float, drop: float
) -> Tensor:
    """Layer normalisation of ``x + dropout(update)``.

    Half precision on a GPU goes through memory once, computes in float32 and stays half precision,
    also under autocast.

    Args:
        x, update: ``(batch, length, dim)``.
        weight, bias: ``(dim,)`` of the normalisation, with its ``eps``.
        drop: probability of dropout; 0 for none.

    Example:
        >>> x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
        >>> add_and_normalise(x, x, torch.ones(4), torch.zeros(4), 1e-5, drop=0.0)
        tensor([[[-1.3416, -0.4472,  0.4472,  1.3416]]])
    """
    if _is_fused(x, update):
        seed = (
            torch.randint(2**62, (), device=x.device)
            if drop
            else x.new_zeros((), dtype=torch.int64)
        )
        out: Tensor = _add_and_normalise(x, update, weight, bias, seed, eps, drop)[0]
        return out
    return F.layer_norm(x + F.dropout(update, drop), weight.shape, weight, bias, eps)


def _is_fused(x: Tensor, update: Tensor) -> bool:
    return (
        kernel is not None
        and update.is_cuda
        and update.dtype in (torch.bfloat16, torch.float16)
        and update.shape[-1] in kernel.DIMS
        and is_large(x)
    )


# Registered operators, so that torch.compile takes each as one opaque call.
@torch.library.custom_op("oaxe::add_and_normalise", mutates_args=())
def _add_and_normalise(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, drop: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return kernel.forward(x, update, weight, bias, seed, eps, drop)


@_add_and_normalise.register_fake
def _(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, drop: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, total = (update.new_empty(update.shape) for _ in range(2))
    n_rows = x.numel() // x.shape[-1]
    mean, scale = (x.new_empty(n_rows, dtype=torch.float32) for _ in range(2))
    return out, total, mean, scale


@torch.library.custom_op("oaxe::add_and_normalise_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    total: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    seed: Tensor,
    drop: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return kernel.backward(gradient, total, mean, scale, weight, seed, drop, dtype)


@_backward.register_fake
def _(
    gradient: Tensor,
    total: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    seed: Tensor,
    drop: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_weight, of_bias = (weight.new_empty(weight.shape) for _ in range(2))
    return total.new_empty(total.shape, dtype=dtype), torch.empty_like(total), of_weight, of_bias


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, weight, _, seed, _, ctx.drop = inputs
    ctx.dtype = x.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], weight, seed)


def _differentiate(ctx: Any, gradient: Tensor, *others: None) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, ctx.drop, ctx.dtype), None, None, None


_add_and_normalise.register_autograd(_differentiate, setup_context=_remember)
