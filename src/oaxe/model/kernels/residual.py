"""Bias, dropout, sum and layer normalisation on the GPU in one pass; see
:mod:`oaxe.model.residual`.

Which numbers are dropped follows from the seed and their index, so nothing is stored of it. Kept
for the backward pass are the sum and two numbers a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oaxe.model.kernels.sums import add_up

DIMS = (128, 256, 512, 1024)
PROGRAMS = 528  # of the backward pass; each adds up gradients of weight and biases for many rows
NUMBERS = 512  # that a warp holds at a time


def forward(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normalised sum (of this dtype), the sum (as x), its mean and factor for every row.

    Nothing is dropped without a seed; its ``number`` tells apart what uses the same.
    """
    x = x.contiguous()
    dim = x.shape[-1]
    rows = x.numel() // dim
    out = torch.empty_like(x, dtype=dtype)
    total = x if update is None else torch.empty_like(x)
    mean, scale = (torch.empty(rows, device=x.device) for _ in range(2))
    block = max(NUMBERS // dim, 1)
    with torch.cuda.device_of(x):
        _forward[(triton.cdiv(rows, block),)](
            x, None if update is None else update.contiguous(), update_bias, weight, bias, seed,
            out, total, mean, scale, rows, eps, number, drop,
            dim=dim, block=block, num_warps=max(dim // NUMBERS, 1),
        )  # fmt: skip
    return out, total, mean, scale


def backward(
    of_out: Tensor | None,
    of_again: Tensor | None,
    of_total: Tensor | None,
    total: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    number: int,
    drop: float,
    dtype: torch.dtype | None,
    bias_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Gradients of x; of the update, if it has a dtype; of weight, bias and, likewise, its bias.

    The first two gradients are for the normalised sum, which may be used twice; the third for the
    sum itself.
    """
    dim, rows = total.shape[-1], len(mean)
    of_x = torch.empty_like(total)
    of_update = None if dtype is None else torch.empty_like(total, dtype=dtype)
    block = max(NUMBERS // dim, 1)
    programs = min(PROGRAMS, triton.cdiv(rows, block))
    sums = torch.empty(3, programs, dim, device=total.device)
    with torch.cuda.device_of(total):
        _backward[(programs,)](
            *(None if given is None else given.contiguous()
              for given in (of_out, of_again, of_total)),
            total, mean, scale, weight, seed, of_x, of_update, sums, rows, programs, number, drop,
            dim=dim, block=block, num_warps=max(dim // NUMBERS, 1),
        )  # fmt: skip
    dtypes = [weight.dtype, weight.dtype] + ([] if bias_dtype is None else [bias_dtype])
    return of_x, of_update, add_up(sums[: len(dtypes)], *dtypes)


@triton.jit
def _forward(
    x,  # (rows, dim)
    update,  # (rows, dim) or None
    update_bias,  # (dim,) or None
    weight,  # (dim,)
    bias,  # (dim,)
    seed,  # () int64 or None
    out,  # (rows, dim)
    total,  # (rows, dim)
    mean,  # (rows,)
    scale,  # (rows,)
    rows,
    eps,
    number,
    drop,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, dim)
    here = row[:, None].to(tl.int64) * dim + column[None, :]
    inside = (row < rows)[:, None]
    added = tl.load(x + here, inside, 0).to(tl.float32)
    if update is not None:
        new = tl.load(update + here, inside, 0).to(tl.float32)
        if update_bias is not None:
            new += tl.load(update_bias + column).to(tl.float32)[None, :]
        if seed is not None:
            new = tl.where(_kept(here, seed, number, drop), new * (1 / (1 - drop)), 0.0)
        added += new
        tl.store(total + here, added, inside)
    middle = tl.sum(added, 1) / dim
    added -= middle[:, None]
    factor = tl.rsqrt(tl.sum(added * added, 1) / dim + eps)
    tl.store(mean + row, middle, row < rows)
    tl.store(scale + row, factor, row < rows)
    normal = added * factor[:, None]
    normal = normal * tl.load(weight + column)[None, :] + tl.load(bias + column)[None, :]
    tl.store(out + here, normal, inside)


@triton.jit
def _backward(
    of_out,  # (rows, dim) or None
    of_again,  # (rows, dim) or None
    of_total,  # (rows, dim) or None
    total,
    mean,
    scale,
    weight,
    seed,
    of_x,  # (rows, dim)
    of_update,  # (rows, dim) or None
    sums,  # (3, programs, dim)
    rows,
    programs,
    number,
    drop,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    column = tl.arange(0, dim)
    factor = tl.load(weight + column).to(tl.float32)[None, :]
    of_weight = tl.zeros([dim], tl.float32)
    of_bias = tl.zeros([dim], tl.float32)
    of_update_bias = tl.zeros([dim], tl.float32)
    for first in tl.range(tl.program_id(0) * block, rows, programs * block, num_stages=4):
        row = first + tl.arange(0, block)
        here = row[:, None].to(tl.int64) * dim + column[None, :]
        inside = (row < rows)[:, None]
        incoming = tl.zeros([block, dim], tl.float32)
        if of_out is not None:
            incoming += tl.load(of_out + here, inside, 0).to(tl.float32)
        if of_again is not None:
            incoming += tl.load(of_again + here, inside, 0).to(tl.float32)
        spread = tl.load(scale + row, row < rows, 0)[:, None]
        normal = tl.load(total + here, inside, 0).to(tl.float32)
        normal = (normal - tl.load(mean + row, row < rows, 0)[:, None]) * spread
        of_weight += tl.sum(incoming * normal, 0)
        of_bias += tl.sum(incoming, 0)
        incoming *= factor
        along = tl.sum(incoming * normal, 1)[:, None] / dim
        outgoing = (incoming - tl.sum(incoming, 1)[:, None] / dim - normal * along) * spread
        if of_total is not None:
            outgoing += tl.load(of_total + here, inside, 0).to(tl.float32)
        tl.store(of_x + here, outgoing, inside)
        if of_update is not None:
            if seed is not None:
                kept = _kept(here, seed, number, drop)
                outgoing = tl.where(kept, outgoing * (1 / (1 - drop)), 0.0)
            tl.store(of_update + here, outgoing, inside)
            of_update_bias += tl.sum(outgoing, 0)
    own = tl.program_id(0) * dim + column
    tl.store(sums + own, of_weight)
    tl.store(sums + programs * dim + own, of_bias)
    tl.store(sums + 2 * programs * dim + own, of_update_bias)


@triton.jit
def _kept(index, seed, number, drop):
    """False with the probability ``drop``; the same for the same seed, number and index."""
    both = tl.load(seed)
    factor = _mixed(both.to(tl.uint32) ^ _mixed((both >> 32).to(tl.uint32) + number))
    bits = index.to(tl.uint32) * (factor | 1) + _mixed(factor + 1)
    return _mixed(bits) >= tl.cast(drop * 4294967296.0, tl.uint32)


@triton.jit
def _mixed(bits):
    """A bijection of 32 bits in which every bit of the input changes half of the output."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits ^ (bits >> 16)
