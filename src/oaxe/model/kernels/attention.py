"""Attention within short sentences on the GPU: one program a sentence and head.

Kernels for long sequences go through tiles of 64 or 128 positions, most of which a sentence of 27
leaves empty. Here a whole sentence is one tile: its scores never leave the registers, in either
direction, and nothing but the inputs is kept for the backward pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 128
HEAD_DIMS = (16, 32, 64, 128)


def attend(query: Tensor, key_value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """``query (batch, length, heads, dim)``, ``key_value (batch, keys, 2, heads, dim)``."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    arguments, options = _arguments(query, key_value, mask, causal, scores_per_warp=1024)
    with torch.cuda.device_of(query):
        _forward[(query.shape[0] * query.shape[2],)](*arguments, out, **options)
    return out


def differentiate(
    query: Tensor, key_value: Tensor, mask: Tensor | None, causal: bool, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of query and key_value, from that of the output."""
    of_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    of_key_value = torch.empty(key_value.shape, dtype=query.dtype, device=query.device)
    arguments, options = _arguments(query, key_value, mask, causal, scores_per_warp=512)
    with torch.cuda.device_of(query):
        _backward[(query.shape[0] * query.shape[2],)](
            *arguments, gradient.contiguous(), of_query, of_key_value, **options
        )
    return of_query, of_key_value


def _arguments(
    query: Tensor, key_value: Tensor, mask: Tensor | None, causal: bool, scores_per_warp: int
) -> tuple[tuple[object, ...], dict[str, object]]:
    _, length, heads, dim = query.shape
    keys = key_value.shape[1]
    seen = query if mask is None else mask.contiguous().view(torch.uint8)
    block, key_block = (max(16, triton.next_power_of_2(n)) for n in (length, keys))
    arguments = (query.contiguous(), key_value.contiguous(), seen, dim**-0.5, length, keys, heads)
    return arguments, {
        "masked": mask is not None,
        "causal": causal,
        "dim": dim,
        "block": block,
        "key_block": key_block,
        "num_warps": max(1, min(8, block * key_block // scores_per_warp)),
    }


@triton.jit
def _forward(
    query,  # (batch, length, heads, dim)
    key_value,  # (batch, keys, 2, heads, dim)
    mask,  # (batch, keys) uint8, if masked
    scale,
    length,
    keys,
    heads,
    out,  # as query
    masked: tl.constexpr,
    causal: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
    key_block: tl.constexpr,
):
    here, is_place = _tile(length, heads, 1, dim, block)
    there, is_key = _tile(keys, heads, 2, dim, key_block)
    q = tl.load(query + here, is_place, 0)
    k = tl.load(key_value + there, is_key, 0)
    v = tl.load(key_value + there + heads * dim, is_key, 0)
    weight = _weights(q, k, mask, scale, keys, heads, masked, causal, block, key_block)
    attended = tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    tl.store(out + here, attended, is_place)


@triton.jit
def _backward(
    query,
    key_value,
    mask,
    scale,
    length,
    keys,
    heads,
    gradient,  # (batch, length, heads, dim)
    of_query,
    of_key_value,
    masked: tl.constexpr,
    causal: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
    key_block: tl.constexpr,
):
    here, is_place = _tile(length, heads, 1, dim, block)
    there, is_key = _tile(keys, heads, 2, dim, key_block)
    q = tl.load(query + here, is_place, 0)
    k = tl.load(key_value + there, is_key, 0)
    v = tl.load(key_value + there + heads * dim, is_key, 0)
    of_out = tl.load(gradient + here, is_place, 0)
    weight = _weights(q, k, mask, scale, keys, heads, masked, causal, block, key_block)
    of_v = tl.dot(tl.trans(weight.to(v.dtype)), of_out, input_precision="ieee")
    tl.store(of_key_value + there + heads * dim, of_v, is_key)
    of_weight = tl.dot(of_out, tl.trans(v), input_precision="ieee")
    of_score = weight * (of_weight - tl.sum(weight * of_weight, 1)[:, None]) * scale
    of_score = of_score.to(k.dtype)
    tl.store(of_query + here, tl.dot(of_score, k, input_precision="ieee"), is_place)
    of_k = tl.dot(tl.trans(of_score), q, input_precision="ieee")
    tl.store(of_key_value + there, of_k, is_key)


@triton.jit
def _tile(length, heads, tensors: tl.constexpr, dim: tl.constexpr, block: tl.constexpr):
    """Offsets of a sentence and head, and which of them are inside: ``(block, dim)``."""
    sentence = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    position = tl.arange(0, block)[:, None]
    row = heads * dim * tensors
    first = sentence.to(tl.int64) * length * row + head * dim
    return first + position * row + tl.arange(0, dim)[None, :], position < length


@triton.jit
def _weights(
    q,
    k,
    mask,
    scale,
    keys,
    heads,
    masked: tl.constexpr,
    causal: tl.constexpr,
    block: tl.constexpr,
    key_block: tl.constexpr,
):
    """Of the keys for every position, ``(block, key_block)`` float32; 0 where none may be seen."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    key = tl.arange(0, key_block)
    seen = key < keys
    if masked:
        seen = tl.load(mask + tl.program_id(0) // heads * keys + key, seen, 0) != 0
    seen = seen[None, :]
    if causal:
        seen = seen & (key[None, :] <= tl.arange(0, block)[:, None])
    score = tl.where(seen, score, float("-inf"))
    highest = tl.max(score, 1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    # tl.exp would take three more instructions, for results that are denormal.
    weight = tl.exp2((score - highest[:, None]) * 1.4426950408889634)
    total = tl.sum(weight, 1)
    return weight * (1 / tl.where(total == 0, 1.0, total))[:, None]
