"""Multi-head attention of packed sentences, up to its output projection.

Projections and attention are one operator, so that the backward pass of attention can add up the
gradients of the biases on its way.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.model import attention as plain
from oaxe.model.spans import Spans

try:
    from oaxe.model.kernels import span_attention as kernel
except ImportError:  # no Triton
    kernel = None  # type: ignore[assignment]


def self_attention(x: Tensor, weight: Tensor, bias: Tensor, heads: int, spans: Spans) -> Tensor:
    """What each token sees in its own sequence, ``(tokens, dim)``; 0 if it sees nothing.

    Args:
        x: ``(tokens, dim)``.
        weight, bias: ``(3 * dim, dim)`` and ``(3 * dim,)``, for queries, keys and values.
        heads: parts of ``dim`` that attend independently.
        spans: which tokens each one sees.

    Example:
        >>> spans = Spans(*torch.tensor([[0, 0], [1, 2], [0, 1], [2, 2]], dtype=torch.int32))
        >>> weight = torch.tensor([[0.0], [0.0], [1.0]])
        >>> self_attention(torch.tensor([[1.0], [3.0]]), weight, torch.zeros(3), 1, spans)
        tensor([[1.],
                [2.]])
    """
    if _is_fused(x, heads):
        return _SelfAttention.apply(x, weight, bias, heads, spans)  # type: ignore[no-untyped-call]
    query, key, value = F.linear(x, weight, bias).view(len(x), 3, heads, -1).unbind(1)
    return _attention(query, key, value, spans).reshape(x.shape)


def cross_attention(
    x: Tensor,
    source: Tensor,
    query_weight: Tensor,
    query_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    heads: int,
    spans: Spans,
) -> tuple[Tensor, Tensor]:
    """What each token of x sees in the source, ``(tokens, dim)``, and the source once more.

    What reads the source next should read that: gradients are then added up where they arise.

    Args:
        x: ``(tokens, dim)``, and source ``(keys, dim)``.
        query_weight, query_bias: ``(dim, dim)`` and ``(dim,)``.
        weight, bias: ``(2 * dim, dim)`` and ``(2 * dim,)``, for keys and values.
        heads, spans: as for :func:`self_attention`.
    """
    given = x, source, query_weight, query_bias, weight, bias
    if _is_fused(x, heads):
        out, source = _CrossAttention.apply(*given, heads, spans)  # type: ignore[no-untyped-call]
        return out, source
    query = F.linear(x, query_weight, query_bias).view(len(x), heads, -1)
    key, value = F.linear(source, weight, bias).view(len(source), 2, heads, -1).unbind(1)
    return _attention(query, key, value, spans).reshape(x.shape), source


def is_fast(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether kernels are for this: half precision on a GPU."""
    return plain.KERNELS and device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def has_kernel(dim: int, heads: int) -> bool:
    """Without one, every token is compared with all others, and sees few of them."""
    return kernel is not None and dim // heads in kernel.HEAD_DIMS


def _is_fused(x: Tensor, heads: int) -> bool:
    return has_kernel(x.shape[-1], heads) and is_fast(x.dtype, x.device)


def _attention(query: Tensor, key: Tensor, value: Tensor, spans: Spans) -> Tensor:
    """Attention by its definition; all are ``(tokens, heads, dim)``."""
    seen = spans.mask()
    blind = ~seen.any(1, keepdim=True)  # sees all instead of nothing, which is then forgotten
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen | blind)
    return out.transpose(0, 1).masked_fill(blind.unsqueeze(2), 0)


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int, spans: Spans
    ) -> Tensor:
        projected = torch.addmm(bias, x, weight.T).view(len(x), 3, heads, -1)
        out, normaliser = kernel.attend(projected[:, 0], projected[:, 1:], spans)
        ctx.save_for_backward(x, weight, projected, out, normaliser, *spans)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, projected, out, normaliser, *spans = ctx.saved_tensors
        found, of_bias = kernel.differentiate_self(
            projected, Spans(*spans), out, normaliser, gradient
        )
        found = found.view(len(x), -1)
        return found @ weight, found.T @ x, of_bias, None, None


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        source: Tensor,
        query_weight: Tensor,
        query_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        heads: int,
        spans: Spans,
    ) -> tuple[Tensor, Tensor]:
        query = torch.addmm(query_bias, x, query_weight.T).view(len(x), heads, -1)
        both = torch.addmm(bias, source, weight.T).view(len(source), 2, heads, -1)
        out, normaliser = kernel.attend(query, both, spans)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, source, query_weight, weight, query, both, out, normaliser, *spans)
        return out.view(x.shape), source.view_as(source)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, of_source: Tensor | None) -> tuple[Tensor | None, ...]:
        x, source, query_weight, weight, query, both, out, normaliser, *spans = ctx.saved_tensors
        of_query, of_query_bias, of_both, of_bias = kernel.differentiate_cross(
            query, both, Spans(*spans), out, normaliser, gradient
        )
        of_query, of_both = of_query.view(x.shape), of_both.view(len(source), -1)
        # In place: the layer after this one computed it for this one alone.
        added = of_both @ weight if of_source is None else of_source.addmm_(of_both, weight)
        of_weights = of_query.T @ x, of_query_bias, of_both.T @ source, of_bias
        return of_query @ query_weight, added, *of_weights, None, None
