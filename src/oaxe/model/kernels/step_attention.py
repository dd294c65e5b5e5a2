"""Attention of one decoding step on the GPU: one program a sentence and head.

The rows of a sentence (its beams) read its keys once for all of them, and each sentence no more
keys than it has: sentences of a batch may be at different steps, at no cost.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_ROWS = 64
HEAD_DIMS = (16, 32, 64, 128)
BYTES_AT_ONCE = 2**14  # of keys, in the shared memory of any GPU; and as many of values


def attend(query: Tensor, key_value: Tensor, n_keys: Tensor, paths: Tensor | None) -> Tensor:
    """See :func:`oaxe.model.attention.step_attention`."""
    sentences, rows, heads, dim = query.shape
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(query):
        _attend[(sentences * heads,)](
            query,
            key_value,
            n_keys,
            query if paths is None else paths,
            out,
            dim**-0.5,
            rows,
            heads,
            0 if paths is None else paths.shape[2],
            key_value.stride(0),
            of_paths=paths is not None,
            dim=dim,
            block=max(16, triton.next_power_of_2(rows)),
            key_block=min(64, BYTES_AT_ONCE // (dim * key_value.itemsize)),
            num_warps=2,
            num_stages=2,
        )
    return out


@triton.jit
def _attend(
    query,  # (sentences, rows, heads, dim)
    key_value,  # (sentences, keys, 2, heads, dim)
    counts,  # (sentences,): keys
    paths,  # (sentences, rows, steps), if of_paths
    out,  # as query
    scale,
    rows,
    heads,
    steps,
    stride,  # of a sentence in key_value
    of_paths: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
    key_block: tl.constexpr,
):
    sentence = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    row = tl.arange(0, block)[:, None]
    within = tl.arange(0, dim)[None, :]
    here = ((sentence * rows + row) * heads + head) * dim + within
    q = tl.load(query + here, row < rows, 0)
    n_keys = tl.load(counts + sentence)
    first = key_value + sentence * stride + head * dim
    highest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    attended = tl.zeros((block, dim), tl.float32)
    for start in range(0, n_keys, key_block):
        key = start + tl.arange(0, key_block)
        there = key[:, None] * (2 * heads * dim) + within
        k = tl.load(first + there, key[:, None] < n_keys, 0)
        v = tl.load(first + heads * dim + there, key[:, None] < n_keys, 0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = (key < n_keys)[None, :] & (row < rows)
        if of_paths:
            # Key i of a step is that of row i.
            path = paths + (sentence * rows + row) * steps + (key // rows)[None, :]
            seen = seen & (tl.load(path, seen, -1) == (key % rows)[None, :])
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        known = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2((highest - known) * 1.4426950408889634)
        weight = tl.exp2((score - known[:, None]) * 1.4426950408889634)
        total = total * fade + tl.sum(weight, 1)
        new = tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        attended = attended * fade[:, None] + new
        highest = higher
    attended = attended / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(out + here, attended, row < rows)
