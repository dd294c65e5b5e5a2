"""What stands between the blocks of a Transformer: dropout, sum, normalisation."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.model.attention import pays
from oaxe.model.dropout import dropped
from oaxe.model.span_attention import is_fast

try:
    from oaxe.model.kernels import residual as kernel
except ImportError:  # no Triton
    kernel = None  # type: ignore[assignment]


class Dropout(NamedTuple):
    """Which numbers are dropped, where many sums share a random seed."""

    seed: Tensor | None  # () int64, random; what is dropped on a GPU follows from it
    number: int  # of the sum, among those that share the seed
    probability: float


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
    if kernel is not None and pays(update) and update.shape[-1] in kernel.DIMS:
        seed = (
            torch.randint(2**62, (), device=x.device)
            if drop
            else x.new_zeros((), dtype=torch.int64)
        )
        return _add_and_normalise(x, update, weight, bias, seed, eps, drop)[0]
    return F.layer_norm(x + dropped(update, drop), weight.shape, weight, bias, eps)


def sum_and_normalise(
    x: Tensor,
    update: Tensor | None,
    update_bias: Tensor | None,
    norm: nn.LayerNorm,
    dropout: Dropout,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer normalisation of ``x + dropout(update + update_bias)``, twice, and the sum itself.

    Twice, for the block that reads it and for the sum after that block: where each is used once,
    nothing but this adds up gradients. The sum is kept in the dtype of x.

    Args:
        x: ``(tokens, dim)``; with no update, it is the sum.
        update, update_bias: ``(tokens, dim)`` and ``(dim,)``, or None.
        norm: its weight and bias may be more precise than the rest.
        dropout: of the update.
        dtype: of the result, the one of the layers that read it.
    """
    if is_fast(dtype, x.device) and kernel is not None and x.shape[-1] in kernel.DIMS:
        return _Sum.apply(  # type: ignore[no-untyped-call]
            x, update, update_bias, norm.weight, norm.bias, norm.eps, *dropout, dtype
        )
    if update is not None:
        with_bias = update if update_bias is None else update + update_bias
        x = x + dropped(with_bias, dropout.probability)
    normal = norm(x.to(norm.weight.dtype)).to(dtype)
    return normal, normal, x


# Registered operators, so that torch.compile takes each as one opaque call.
@torch.library.custom_op("oaxe::add_and_normalise", mutates_args=())
def _add_and_normalise(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, drop: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = seed if drop else None
    return kernel.forward(x, update, None, weight, bias, eps, random, 0, drop, update.dtype)


@_add_and_normalise.register_fake
def _(x: Tensor, update: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_rows = x.numel() // x.shape[-1]
    mean, scale = (x.new_empty(n_rows, dtype=torch.float32) for _ in range(2))
    return update.new_empty(update.shape), x.new_empty(x.shape), mean, scale


@torch.library.custom_op("oaxe::add_and_normalise_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    total: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    seed: Tensor,
    drop: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kept = total, mean, scale, weight, seed if drop else None, 0, drop
    of_x, of_update, (of_weight, of_bias) = kernel.backward(
        gradient, None, None, *kept, gradient.dtype, None
    )
    assert of_update is not None
    return of_x, of_update, of_weight, of_bias


@_backward.register_fake
def _(
    gradient: Tensor, total: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_weight, of_bias = (weight.new_empty(weight.shape) for _ in range(2))
    return torch.empty_like(total), gradient.new_empty(gradient.shape), of_weight, of_bias


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, weight, _, seed, _, ctx.drop = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], weight, seed)


def _differentiate(ctx: Any, gradient: Tensor, *others: None) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, ctx.drop), None, None, None


_add_and_normalise.register_autograd(_differentiate, setup_context=_remember)


class _Sum(torch.autograd.Function):
    """See :func:`sum_and_normalise`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        update: Tensor | None,
        update_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        seed: Tensor | None,
        number: int,
        drop: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        random = seed if drop else None
        assert drop == 0 or seed is not None
        out, total, mean, scale = kernel.forward(
            x, update, update_bias, weight, bias, eps, random, number, drop, dtype
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(total, mean, scale, weight, random)
        ctx.dropout = number, drop
        ctx.dtypes = [None if given is None else given.dtype for given in (update, update_bias)]
        return out, out.view_as(out), total.view_as(total) if update is None else total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        of_x, of_update, (of_weight, of_bias, *of_update_bias) = kernel.backward(
            *gradients, *ctx.saved_tensors, *ctx.dropout, *ctx.dtypes
        )
        given = of_x, of_update, of_update_bias[0] if of_update_bias else None, of_weight, of_bias
        return *given, None, None, None, None, None
