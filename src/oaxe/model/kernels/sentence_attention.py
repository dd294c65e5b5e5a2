"""Attention within short packed sentences on the GPU: a whole sentence and head at a time.

Its scores never leave the registers, in either direction, and nothing but the inputs is kept for
the backward pass. Sentences fall into classes by their length; there is a launch for each class,
the longest first, whose programs take some of its sentences.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from oaxe.model.kernels.sums import add_up
from oaxe.model.spans import CLASSES, Sentences

SENTENCES = tl.constexpr(4)  # of a program
SCORES = {"forward": 1024, "backward": 512}  # that a warp holds at a time


def attend(query: Tensor, key_value: Tensor, sentences: Sentences) -> Tensor:
    """``query (queries, heads, dim)``, ``key_value (keys, 2, heads, dim)``, dense but for the
    distance between tokens."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _launch(_forward, query, key_value, sentences, "forward", out)
    return out


def differentiate_self(
    projected: Tensor, sentences: Sentences, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of ``projected (tokens, 3, heads, dim)``, and its sum over the tokens."""
    found, sums = torch.empty_like(projected), _partial_sums(projected, sentences)
    _launch(
        _backward, projected[:, 0], projected[:, 1:], sentences, "backward", gradient.contiguous(),
        found[:, 0], found[:, 1:], sums[:, 0], sums[:, 1:], *_rows(sums, sums),
    )  # fmt: skip
    return found, _added_up(sums, projected)


def differentiate_cross(
    query: Tensor, key_value: Tensor, sentences: Sentences, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query and key_value, each followed by its sum over the tokens."""
    found, sums = torch.empty_like(query), _partial_sums(query, sentences)
    key_found, key_sums = torch.empty_like(key_value), _partial_sums(key_value, sentences)
    _launch(
        _backward, query, key_value, sentences, "backward", gradient.contiguous(),
        found, key_found, sums, key_sums, *_rows(sums, key_sums),
    )  # fmt: skip
    return found, _added_up(sums, query), key_found, _added_up(key_sums, key_value)


def _launch(
    kernel: object, query: Tensor, key_value: Tensor, sentences: Sentences, way: str, *more: object
) -> None:
    queries, heads, dim = query.shape
    programs = _programs(sentences)
    with torch.cuda.device_of(query):
        for number in reversed(range(sentences.classes)):
            block = CLASSES[number]
            launch = partial(
                kernel[(programs * heads,)],  # type: ignore[index]
                query, key_value, sentences.table, sentences.order, sentences.bounds,
                dim**-0.5, queries, len(key_value), heads, len(sentences.order), number, programs,
                query.stride(0), key_value.stride(0), *more,
            )  # fmt: skip
            launch(
                causal=sentences.causal,
                dim=dim,
                block=block,
                num_warps=max(1, min(8, block * block // SCORES[way])),
            )


def _programs(sentences: Sentences) -> int:
    programs: int = triton.cdiv(len(sentences.order), SENTENCES.value)
    return programs


def _partial_sums(x: Tensor, sentences: Sentences) -> Tensor:
    """Room for a sum for every program."""
    return torch.empty(sentences.classes * _programs(sentences), *x.shape[1:], device=x.device)


def _rows(sums: Tensor, key_sums: Tensor) -> tuple[int, int]:
    return sums.stride(0), key_sums.stride(0)


def _added_up(sums: Tensor, like: Tensor) -> Tensor:
    return add_up(sums.view(1, len(sums), -1), like.dtype)[0]


@triton.jit(do_not_specialize=["number"])
def _forward(
    query,  # (queries, heads, dim), row apart
    key_value,  # (keys, 2, heads, dim), key_row apart
    table,  # (4, sentences) int32: where queries and keys begin, and how many there are
    order,  # (sentences,) int32: those of a class together
    bounds,  # (classes + 1,) int32: where a class begins in the order
    scale,
    queries,
    keys,
    heads,
    sentences,
    number,  # of the class
    programs,
    row,
    key_row,
    out,  # (queries, heads, dim)
    causal: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    head = tl.program_id(0) % heads
    own = tl.program_id(0) // heads
    begin, end = _mine(bounds, number, own)
    for item in range(begin, end):
        first, length, first_key, n_keys = _sentence(table, order, item, sentences)
        q, k, v, is_place, _ = _read(
            query, key_value, first, length, first_key, n_keys, head, heads, row, key_row, dim,
            block,
        )  # fmt: skip
        weight = _weights(q, k, scale, n_keys, causal, block)
        attended = tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        tl.store(out + _tile(first, heads * dim, head, dim, block), attended, is_place)
    if number == 0:
        first = _behind_the_last(table, sentences)
        _clear(out, first, queries, heads * dim, own, programs, head, dim, block)


@triton.jit(do_not_specialize=["number"])
def _backward(
    query,
    key_value,
    table,
    order,
    bounds,
    scale,
    queries,
    keys,
    heads,
    sentences,
    number,
    programs,
    row,
    key_row,
    gradient,  # (queries, heads, dim)
    of_query,  # as query
    of_key_value,  # as key_value
    sums,  # float32 sums of the gradients, for every program: as query
    key_sums,  # likewise, as key_value
    sum_row,
    key_sum_row,
    causal: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    head = tl.program_id(0) % heads
    own = tl.program_id(0) // heads
    begin, end = _mine(bounds, number, own)
    of_bias = tl.zeros([dim], tl.float32)
    of_key_bias = tl.zeros([dim], tl.float32)
    of_value_bias = tl.zeros([dim], tl.float32)
    for item in range(begin, end):
        first, length, first_key, n_keys = _sentence(table, order, item, sentences)
        q, k, v, is_place, is_key = _read(
            query, key_value, first, length, first_key, n_keys, head, heads, row, key_row, dim,
            block,
        )  # fmt: skip
        of_out = tl.load(gradient + _tile(first, heads * dim, head, dim, block), is_place, 0)
        weight = _weights(q, k, scale, n_keys, causal, block)
        of_v = tl.dot(tl.trans(weight.to(v.dtype)), of_out, input_precision="ieee")
        there = _tile(first_key, key_row, head, dim, block)
        tl.store(of_key_value + there + heads * dim, of_v, is_key)
        of_value_bias += tl.sum(of_v, 0)
        of_weight = tl.dot(of_out, tl.trans(v), input_precision="ieee")
        of_score = weight * (of_weight - tl.sum(weight * of_weight, 1)[:, None]) * scale
        of_score = of_score.to(k.dtype)
        of_q = tl.dot(of_score, k, input_precision="ieee")
        tl.store(of_query + _tile(first, row, head, dim, block), of_q, is_place)
        of_bias += tl.sum(of_q, 0)
        of_k = tl.dot(tl.trans(of_score), q, input_precision="ieee")
        tl.store(of_key_value + there, of_k, is_key)
        of_key_bias += tl.sum(of_k, 0)
    column = head * dim + tl.arange(0, dim)
    mine = number * programs + own
    tl.store(sums + mine * sum_row + column, of_bias)
    tl.store(key_sums + mine * key_sum_row + column, of_key_bias)
    tl.store(key_sums + mine * key_sum_row + heads * dim + column, of_value_bias)
    if number == 0:
        first = _behind_the_last(table, sentences)
        _clear(of_query, first, queries, row, own, programs, head, dim, block)
        first = _behind_the_last(table + 2 * sentences, sentences)
        _clear(of_key_value, first, keys, key_row, own, programs, head, dim, block)
        values = of_key_value + heads * dim
        _clear(values, first, keys, key_row, own, programs, head, dim, block)


@triton.jit
def _mine(bounds, number, own):
    """The sentences of a program."""
    begin = tl.load(bounds + number) + own * SENTENCES
    return begin, tl.minimum(begin + SENTENCES, tl.load(bounds + number + 1))


@triton.jit
def _sentence(table, order, item, sentences):
    here = table + tl.load(order + item)
    return (
        tl.load(here),
        tl.load(here + sentences),
        tl.load(here + 2 * sentences),
        tl.load(here + 3 * sentences),
    )


@triton.jit
def _read(
    query, key_value, first, length, first_key, n_keys, head, heads, row, key_row,
    dim: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    position = tl.arange(0, block)[:, None]
    is_place, is_key = position < length, position < n_keys
    there = _tile(first_key, key_row, head, dim, block)
    q = tl.load(query + _tile(first, row, head, dim, block), is_place, 0)
    k = tl.load(key_value + there, is_key, 0)
    v = tl.load(key_value + there + heads * dim, is_key, 0)
    return q, k, v, is_place, is_key


@triton.jit
def _weights(q, k, scale, n_keys, causal: tl.constexpr, block: tl.constexpr):
    """Of the keys for every position, ``(block, block)`` float32; 0 where none may be seen."""
    key = tl.arange(0, block)[None, :]
    seen = key < n_keys
    if causal:
        seen = seen & (key <= tl.arange(0, block)[:, None])
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
    score = tl.where(seen, score, float("-inf"))
    highest = tl.max(score, 1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2(score - highest[:, None])
    total = tl.sum(weight, 1)
    return weight * (1 / tl.where(total == 0, 1.0, total))[:, None]


@triton.jit
def _tile(first, row, head, dim: tl.constexpr, block: tl.constexpr):
    """Offsets of a head of these tokens, ``(block, dim)``."""
    place = first + tl.arange(0, block)
    return place[:, None].to(tl.int64) * row + head * dim + tl.arange(0, dim)[None, :]


@triton.jit
def _behind_the_last(table, sentences):
    """The first token that is of no sentence."""
    return tl.load(table + sentences - 1) + tl.load(table + 2 * sentences - 1)


@triton.jit
def _clear(x, first, tokens, row, own, programs, head, dim: tl.constexpr, block: tl.constexpr):
    """Zeros behind the last sentence: what is there must not be NaN."""
    zeros = tl.zeros([block, dim], x.dtype.element_ty)
    for place in range(first + own * block, tokens, programs * block):
        inside = (place + tl.arange(0, block) < tokens)[:, None]
        tl.store(x + _tile(place, row, head, dim, block), zeros, inside)
