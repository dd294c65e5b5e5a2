"""The first half of a Transformer's feed-forward block: a linear layer and GELU."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.model.attention import pays

try:
    from oaxe.model.kernels import gelu as kernel
except ImportError:  # no Triton
    kernel = None  # type: ignore[assignment]


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``gelu(x @ weight.T + bias)``: ``(batch, length, dim)`` to ``(batch, length, ffn)``.

    Half precision on a GPU goes through memory once in each direction; the backward pass adds up
    the gradient of the bias on the way.

    Example:
        >>> linear_gelu(torch.ones(1, 1, 2), torch.eye(2), torch.tensor([0.0, -1.0]))
        tensor([[[0.8413, 0.0000]]])
    """
    if kernel is None or not pays(x):
        return F.gelu(F.linear(x, weight, bias))
    rows = x.reshape(-1, x.shape[-1])
    out, _ = _linear_gelu(rows, weight.to(x.dtype), bias.to(x.dtype))
    return out.view(*x.shape[:-1], weight.shape[0])


# Registered operators, so that torch.compile takes each as one opaque call.
@torch.library.custom_op("oaxe::linear_gelu", mutates_args=())
def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    inner = torch.addmm(bias, x, weight.T)
    return kernel.forward(inner), inner


@_linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    shape = x.shape[0], weight.shape[0]  # len would fix a dynamic size
    out, inner = (x.new_empty(shape) for _ in range(2))
    return out, inner


@torch.library.custom_op("oaxe::linear_gelu_backward", mutates_args=())
def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, inner: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    of_inner, of_bias = kernel.backward(gradient.contiguous(), inner)
    return of_inner @ weight, of_inner.T @ x, of_bias


@_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, inner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _differentiate(ctx: Any, gradient: Tensor, *others: None) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(gradient, *ctx.saved_tensors)


_linear_gelu.register_autograd(_differentiate, setup_context=_remember)
