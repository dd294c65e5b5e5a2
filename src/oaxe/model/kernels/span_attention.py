"""Attention within stretches of tokens on the GPU; see :mod:`oaxe.model.span_attention`.

A program has one head of a tile of consecutive tokens, and goes through the tokens on the other
side that any of them sees. As sentences are short, these are hardly more than the tile itself.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from oaxe.model.kernels.sums import add_up
from oaxe.model.spans import Spans

HEAD_DIMS = (16, 32, 64, 128)


class Tiles(NamedTuple):
    block: int  # tokens of a program
    other: int  # tokens on the other side that it takes at a time
    warps: int
    stages: int


FORWARD = Tiles(block=64, other=32, warps=4, stages=3)
BACKWARD = Tiles(block=64, other=32, warps=4, stages=1)


def attend(query: Tensor, key_value: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    """``query (queries, heads, dim)``, ``key_value (keys, 2, heads, dim)``, dense but for the
    distance between tokens.

    Returns the output, and the log2 of the sum of a query's exponentials, ``(heads, queries)``.
    """
    queries, heads, dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    normaliser = torch.empty(heads, queries, device=query.device)
    with torch.cuda.device_of(query):
        _forward[(triton.cdiv(queries, FORWARD.block) * heads,)](
            query, key_value, spans.first, spans.last, out, normaliser,
            dim**-0.5, queries, heads, query.stride(0), key_value.stride(0), dim=dim,
            block=FORWARD.block, other=FORWARD.other,
            num_warps=FORWARD.warps, num_stages=FORWARD.stages,
        )  # fmt: skip
    return out, normaliser


def differentiate_self(
    projected: Tensor, spans: Spans, out: Tensor, normaliser: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of ``projected (tokens, 3, heads, dim)``, and its sum over the tokens."""
    found, sums = torch.empty_like(projected), _partial_sums(projected)
    _differentiate(
        projected[:, 0], projected[:, 1:], spans, out, normaliser, gradient,
        found[:, 0], found[:, 1:], sums[:, 0], sums[:, 1:],
    )  # fmt: skip
    return found, _added_up(sums, projected)


def differentiate_cross(
    query: Tensor,
    key_value: Tensor,
    spans: Spans,
    out: Tensor,
    normaliser: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query and key_value, each followed by its sum over the tokens."""
    found, sums = torch.empty_like(query), _partial_sums(query)
    key_found, key_sums = torch.empty_like(key_value), _partial_sums(key_value)
    _differentiate(
        query, key_value, spans, out, normaliser, gradient, found, key_found, sums, key_sums
    )
    return found, _added_up(sums, query), key_found, _added_up(key_sums, key_value)


def _partial_sums(x: Tensor) -> Tensor:
    """Room for a sum for every tile of tokens."""
    tiles = triton.cdiv(len(x), BACKWARD.block)
    return torch.empty(tiles, *x.shape[1:], device=x.device)


def _added_up(sums: Tensor, like: Tensor) -> Tensor:
    return add_up(sums.view(1, len(sums), -1), like.dtype)[0]


def _differentiate(
    query: Tensor,
    key_value: Tensor,
    spans: Spans,
    out: Tensor,
    normaliser: Tensor,
    gradient: Tensor,
    of_query: Tensor,
    of_key_value: Tensor,
    sums: Tensor,
    key_sums: Tensor,
) -> None:
    (queries, heads, dim), keys = query.shape, len(key_value)
    tiles, key_tiles = len(sums), len(key_sums)
    with torch.cuda.device_of(query):
        _backward[(max(tiles, key_tiles) * heads * 2,)](
            query, key_value, *spans, out, normaliser, gradient.contiguous(),
            of_query, of_key_value, sums, key_sums,
            dim**-0.5, queries, keys, heads, query.stride(0), key_value.stride(0),
            tiles, key_tiles, dim=dim, block=BACKWARD.block, other=BACKWARD.other,
            num_warps=BACKWARD.warps, num_stages=BACKWARD.stages,
        )  # fmt: skip


@triton.jit
def _forward(
    query,  # (queries, heads, dim), row apart
    key_value,  # (keys, 2, heads, dim), key_row apart
    first,  # (queries,) int32
    last,  # (queries,) int32
    out,  # (queries, heads, dim)
    normaliser,  # (heads, queries)
    scale,
    queries,
    heads,
    row,
    key_row,
    dim: tl.constexpr,
    block: tl.constexpr,
    other: tl.constexpr,
):
    head = tl.program_id(0) % heads
    place = tl.program_id(0) // heads * block + tl.arange(0, block)
    begin, end, low, high = _stretch(first, last, place, queries)
    inside = (place < queries)[:, None]
    q = tl.load(query + _tile(place, row, head, dim), inside, 0)
    highest = tl.full([block], -1e30, tl.float32)
    total = tl.zeros([block], tl.float32)
    summed = tl.zeros([block, dim], tl.float32)
    for start in range(low, high, other):
        there = start + tl.arange(0, other)
        tile = _tile(there, key_row, head, dim)
        k = tl.load(key_value + tile, (there < high)[:, None], 0)
        v = tl.load(key_value + heads * dim + tile, (there < high)[:, None], 0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        score = tl.where(_sees(there[None, :], begin, end), score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        shrink = tl.exp2(highest - higher)
        weight = tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(weight, 1)
        summed *= shrink[:, None]
        summed += tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        highest = higher
    total = tl.where(total == 0, 1.0, total)
    tl.store(out + _tile(place, heads * dim, head, dim), summed / total[:, None], inside)
    tl.store(normaliser + head * queries + place, highest + tl.log2(total), place < queries)


@triton.jit
def _backward(
    query,
    key_value,
    first,
    last,
    first_query,  # (keys,) int32
    last_query,  # (keys,) int32
    out,
    normaliser,
    gradient,  # as out
    of_query,  # as query
    of_key_value,  # as key_value
    sums,  # as query, for tiles in place of tokens: float32 sums of the gradients
    key_sums,  # as key_value, likewise
    scale,
    queries,
    keys,
    heads,
    row,
    key_row,
    tiles,
    key_tiles,
    dim: tl.constexpr,
    block: tl.constexpr,
    other: tl.constexpr,
):
    """One half of the programs has queries, the other keys.

    Neighbours of both kinds run at the same time, so that much of what they read is in the cache.
    """
    head = tl.program_id(0) // 2 % heads
    number = tl.program_id(0) // (2 * heads)
    place = number * block + tl.arange(0, block)
    column = head * dim + tl.arange(0, dim)
    if tl.program_id(0) % 2 == 0:
        if number < tiles:
            found = _of_query(
                query, key_value, first, last, out, normaliser, gradient, of_query, place, head,
                scale, queries, heads, row, key_row, dim, block, other,
            )  # fmt: skip
            tl.store(sums + number * row + column, found)
    else:
        if number < key_tiles:
            found, found_value = _of_key_value(
                query, key_value, first_query, last_query, out, normaliser, gradient,
                of_key_value, place, head,
                scale, queries, keys, heads, row, key_row, dim, block, other,
            )  # fmt: skip
            tl.store(key_sums + number * key_row + column, found)
            tl.store(key_sums + number * key_row + heads * dim + column, found_value)


@triton.jit
def _of_query(
    query, key_value, first, last, out, normaliser, gradient, of_query, place, head,
    scale, queries, heads, row, key_row,
    dim: tl.constexpr, block: tl.constexpr, other: tl.constexpr,
):  # fmt: skip
    begin, end, low, high = _stretch(first, last, place, queries)
    inside = (place < queries)[:, None]
    here = _tile(place, row, head, dim)
    q = tl.load(query + here, inside, 0)
    dense = _tile(place, heads * dim, head, dim)
    of_out = tl.load(gradient + dense, inside, 0)
    attended = tl.load(out + dense, inside, 0).to(tl.float32)
    along = tl.sum(of_out.to(tl.float32) * attended, 1)
    norm = tl.load(normaliser + head * queries + place, place < queries, 0)
    summed = tl.zeros([block, dim], tl.float32)
    for start in range(low, high, other):
        there = start + tl.arange(0, other)
        tile = _tile(there, key_row, head, dim)
        k = tl.load(key_value + tile, (there < high)[:, None], 0)
        v = tl.load(key_value + heads * dim + tile, (there < high)[:, None], 0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        score = tl.where(_sees(there[None, :], begin, end), score - norm[:, None], float("-inf"))
        weight = tl.exp2(score)
        of_weight = tl.dot(of_out, tl.trans(v), input_precision="ieee")
        of_score = weight * (of_weight - along[:, None])
        summed += tl.dot(of_score.to(k.dtype), k, input_precision="ieee")
    summed *= scale
    tl.store(of_query + here, summed, inside)
    return tl.sum(summed, 0)


@triton.jit
def _of_key_value(
    query, key_value, first_query, last_query, out, normaliser, gradient,
    of_key_value, place, head, scale, queries, keys, heads, row, key_row,
    dim: tl.constexpr, block: tl.constexpr, other: tl.constexpr,
):  # fmt: skip
    begin, end, low, high = _stretch(first_query, last_query, place, keys)
    inside = (place < keys)[:, None]
    here = _tile(place, key_row, head, dim)
    k = tl.load(key_value + here, inside, 0)
    v = tl.load(key_value + heads * dim + here, inside, 0)
    summed = tl.zeros([block, dim], tl.float32)
    summed_value = tl.zeros([block, dim], tl.float32)
    for start in range(low, high, other):
        there = start + tl.arange(0, other)
        exists = (there < high)[:, None]
        q = tl.load(query + _tile(there, row, head, dim), exists, 0)
        dense = _tile(there, heads * dim, head, dim)
        of_out = tl.load(gradient + dense, exists, 0)
        attended = tl.load(out + dense, exists, 0).to(tl.float32)
        along = tl.sum(of_out.to(tl.float32) * attended, 1)
        norm = tl.load(normaliser + head * queries + there, there < high, 0)
        score = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * 1.4426950408889634)
        score = tl.where(_sees(there[None, :], begin, end), score - norm[None, :], float("-inf"))
        weight = tl.exp2(score)
        summed_value += tl.dot(weight.to(q.dtype), of_out, input_precision="ieee")
        of_weight = tl.dot(v, tl.trans(of_out), input_precision="ieee")
        of_score = weight * (of_weight - along[None, :])
        summed += tl.dot(of_score.to(q.dtype), q, input_precision="ieee")
    summed *= scale
    tl.store(of_key_value + here, summed, inside)
    tl.store(of_key_value + heads * dim + here, summed_value, inside)
    return tl.sum(summed, 0), tl.sum(summed_value, 0)


@triton.jit
def _stretch(first, last, place, n):
    """What each token sees, and the stretch that holds all of it; empty if they see nothing."""
    begin = tl.load(first + place, place < n, 0)
    end = tl.load(last + place, place < n, 0)
    low = tl.min(tl.where(begin < end, begin, 2147483647), 0)
    high = tl.max(tl.where(begin < end, end, 0), 0)
    return begin, end, tl.minimum(low, high), high


@triton.jit
def _sees(there, begin, end):
    return (there >= begin[:, None]) & (there < end[:, None])


@triton.jit
def _tile(place, row, head, dim: tl.constexpr):
    """Offsets of a head of these tokens, ``(block, dim)``."""
    return place[:, None].to(tl.int64) * row + head * dim + tl.arange(0, dim)[None, :]
