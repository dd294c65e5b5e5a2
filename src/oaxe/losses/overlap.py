"""How likely neighbouring tokens are the same word, beside the logsumexp of their logits.

An operator as those of :mod:`oaxe.losses.linear_softmax`, but in PyTorch everywhere.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import at_least_float32, no_second_derivative
from oaxe.losses.linear_softmax import Gradients, Layer, chunks, kernels_for, like_gradients, nan_if
from oaxe.losses.rows import rows_of


def layer_overlap(
    layer: Layer, without: int, mask: Tensor | None = None, capacity: int | None = None
) -> tuple[Tensor, Tensor]:
    r"""``(batch, length)`` each: the logsumexp, and the overlap with the token before.

    :math:`\sum_{v \ne without} p_t(v)\, p_{t-1}(v)`: the probability that two neighbours, drawn
    independently, are the same word. The token before is the last one that ``mask (batch, length)``
    has in the same row; the first one has none, and overlap 0. Both are 0 where it is False.
    """
    hidden, embedding, bias = layer
    rows = hidden.reshape(-1, hidden.shape[-1])
    mask = hidden.new_ones(hidden.shape[:-1], dtype=torch.bool) if mask is None else mask
    taken = rows_of(mask.flatten(), mask.numel() if capacity is None else capacity)
    linked = taken.take((mask & (mask.cumsum(1) > 1)).flatten())
    found = _overlap(taken.take(rows), embedding, bias, linked, without)
    logsumexp, overlap = (taken.put(each).view(mask.shape) for each in found)
    return logsumexp + nan_if(taken.too_many, logsumexp), overlap


@torch.library.custom_op("oaxe::linear_overlap", mutates_args=())
def _overlap(
    hidden: Tensor, embedding: Tensor, bias: Tensor | None, linked: Tensor, without: int
) -> tuple[Tensor, Tensor]:
    """``linked (tokens,)`` bool: True where the token before is a neighbour."""
    logsumexp = at_least_float32(hidden.new_empty(0)).new_empty(len(hidden))
    overlap = torch.empty_like(logsumexp)
    for some, logits in chunks(hidden, embedding, bias, logsumexp.dtype, around=1):
        found = kernels_for(logits).logsumexp(logits.clone())  # it may overwrite them
        logsumexp[some] = found[1:-1]
        said = logits.sub_(found.unsqueeze(1)).exp_()
        said[:, without] = 0
        overlap[some] = (said[1:-1] * said[:-2]).sum(1)
    return logsumexp, overlap * linked


@_overlap.register_fake
def _(hidden: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    like = at_least_float32(hidden.new_empty(hidden.shape[0]))
    return like, torch.empty_like(like)


@torch.library.custom_op("oaxe::linear_overlap_backward", mutates_args=())
def _overlap_backward(
    of_logsumexp: Tensor,
    of_overlap: Tensor,
    logsumexp: Tensor,
    overlap: Tensor,
    hidden: Tensor,
    embedding: Tensor,
    bias: Tensor | None,
    linked: Tensor,
    without: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a logit: p_t(v) (g - w_t s_t - w_{t+1} s_{t+1} + w_t p_{t-1}(v) + w_{t+1} p_{t+1}(v)),

    for gradients g of the logsumexp and w of the overlap s; without the last two for one word.
    """
    before = of_overlap * linked
    after, next_overlap = (F.pad(x, (0, 1))[1:] for x in (before, overlap))
    factor = of_logsumexp - before * overlap - after * next_overlap
    padded, of = F.pad(logsumexp, (1, 1)), Gradients(hidden, embedding, bias)
    for some, logits in chunks(hidden, embedding, bias, logsumexp.dtype, around=1):
        start = some.start
        said = logits.sub_(padded[start : start + len(logits)].unsqueeze(1)).exp_()
        gradient = said[:-2] * before[some].unsqueeze(1)
        gradient.addcmul_(said[2:], after[some].unsqueeze(1))
        gradient[:, without] = 0
        gradient.add_(factor[some].unsqueeze(1)).mul_(said[1:-1])
        of.add(some, gradient.to(hidden.dtype))
    return of.hidden, of.embedding, of.bias


@_overlap_backward.register_fake
def _(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, _, _, hidden, embedding, bias, *_ = given
    return like_gradients(hidden, embedding, bias)


def _remember_overlap(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.without = inputs
    ctx.save_for_backward(*output, *tensors)


def _differentiate_overlap(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    given = (gradient.contiguous() for gradient in gradients)
    of = _overlap_backward(*given, *ctx.saved_tensors, ctx.without)
    embedding, bias = ctx.saved_tensors[3:5]
    of_bias = None if bias is None else of[2].to(bias.dtype)
    return of[0], of[1].to(embedding.dtype), of_bias, None, None


_overlap.register_autograd(_differentiate_overlap, setup_context=_remember_overlap)
_overlap_backward.register_autograd(no_second_derivative)
