"""Scaled dot-product attention, with a kernel of our own where sentences are short."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from oaxe.model.kernels import attention as kernel
    from oaxe.model.kernels import step_attention as step_kernel
except ImportError:  # no Triton
    kernel = step_kernel = None  # type: ignore[assignment]


KERNELS = True  # False: PyTorch's own layers everywhere, to compare with
LARGE = 2_048  # positions; for fewer, launching a kernel takes more time than it saves


def attention(query: Tensor, key_value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """What each position of each head sees, ``(batch, length, heads, dim)``.

    Args:
        query: ``(batch, length, heads, dim)``.
        key_value: ``(batch, keys, 2, heads, dim)``.
        mask: bool, False for keys that are not seen: ``(batch, keys)`` by any position, or
            ``(batch * length, keys)`` by that position.
        causal: a position sees no key after it.

    Example:
        >>> one, two = torch.eye(2).view(2, 1, 1, 2)
        >>> attention(torch.zeros(1, 1, 1, 2), torch.stack([one, two]).view(1, 2, 1, 1, 2).expand(
        ...     1, 2, 2, 1, 2), None, causal=False)
        tensor([[[[0.5000, 0.5000]]]])
    """
    if (
        kernel is not None
        and pays(query)
        and query.shape[3] in kernel.HEAD_DIMS
        and max(query.shape[1], key_value.shape[1]) <= kernel.LONGEST
        and (mask is None or len(mask) == len(query))
    ):
        return _short_attention(query, key_value, mask, causal)
    keys, values = key_value.unbind(2)
    return F.scaled_dot_product_attention(
        query.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=None if mask is None else mask.view(len(query), 1, -1, mask.shape[1]),
        is_causal=causal,
    ).transpose(1, 2)


def step_attention(
    query: Tensor,
    key_value: Tensor,
    n_keys: Tensor,
    mask: Tensor | None,
    paths: Tensor | None = None,
) -> Tensor:
    """What the next token of each row sees, ``(sentences, rows, heads, dim)``.

    Args:
        query: ``(sentences, rows, heads, dim)``.
        key_value: ``(sentences, keys, 2, heads, dim)``, which the rows of a sentence share.
        n_keys: ``(sentences,)``: how many of its keys each sentence has.
        mask: bool, ``(sentences, room)`` or ``(sentences * rows, room)``: those of the first
            ``room`` keys that are seen. None, where :func:`has_step_kernel`: ``n_keys`` and
            ``paths`` say so.
        paths: ``(sentences, rows, steps)`` int32, for keys of which each step added one a row:
            which of them the row sees.
    """
    if mask is None:
        return step_kernel.attend(query, key_value, n_keys, paths)
    return attention(query, key_value[:, : mask.shape[1]], mask, causal=False)


def has_step_kernel(x: Tensor, rows: int, head_dim: int) -> bool:
    return (
        KERNELS
        and step_kernel is not None
        and x.is_cuda
        and x.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and head_dim in step_kernel.HEAD_DIMS
        and rows <= step_kernel.MOST_ROWS
    )


def pays(x: Tensor) -> bool:
    """Whether kernels are for ``x (batch, length, ...)``: enough of half precision on a GPU."""
    half = x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)
    return KERNELS and half and x.shape[0] * x.shape[1] >= LARGE


# Registered operators, so that torch.compile takes each as one opaque call.
@torch.library.custom_op("oaxe::short_attention", mutates_args=())
def _short_attention(query: Tensor, key_value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    return kernel.attend(query, key_value, mask, causal)


@_short_attention.register_fake
def _(query: Tensor, *_: Any) -> Tensor:
    return query.new_empty(query.shape)


@torch.library.custom_op("oaxe::short_attention_backward", mutates_args=())
def _short_attention_backward(
    query: Tensor, key_value: Tensor, mask: Tensor | None, causal: bool, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    return kernel.differentiate(query, key_value, mask, causal, gradient)


@_short_attention_backward.register_fake
def _(query: Tensor, key_value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), key_value.new_empty(key_value.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key_value, mask, ctx.causal = inputs
    ctx.save_for_backward(query, key_value, mask)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    query, key_value, mask = ctx.saved_tensors
    return *_short_attention_backward(query, key_value, mask, ctx.causal, gradient), None, None


_short_attention.register_autograd(_differentiate, setup_context=_remember)
