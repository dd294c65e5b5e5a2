"""Dropout, sum and layer normalisation on the GPU in one pass; see :mod:`oaxe.model.residual`.

Which numbers are dropped follows from the seed and their index, so nothing is stored of it. Kept
for the backward pass are the sum and two numbers a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

DIMS = (128, 256, 512, 1024)
PROGRAMS = 1024  # of the backward pass; each adds up gradients of weight and bias for many rows
NUMBERS = 512  # that a warp holds at a time


def forward(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, eps: float, drop: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, update = x.contiguous(), update.contiguous()
    dim = x.shape[-1]
    rows = x.numel() // dim
    out, total = torch.empty_like(update), torch.empty_like(update)
    mean, scale = (torch.empty(rows, device=x.device) for _ in range(2))
    block = max(NUMBERS // dim, 1)
    with torch.cuda.device_of(x):
        _forward[(triton.cdiv(rows, block),)](
            x, update, weight, bias, seed, out, total, mean, scale, rows, eps, drop,
            drops=drop > 0, dim=dim, block=block, num_warps=max(dim // NUMBERS, 1),
        )  # fmt: skip
    return out, total, mean, scale


def backward(
    gradient: Tensor,
    total: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor,
    seed: Tensor,
    drop: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (of the given dtype), update, weight and bias."""
    dim, rows = total.shape[-1], len(mean)
    of_x, of_update = torch.empty_like(total, dtype=dtype), torch.empty_like(total)
    block = max(NUMBERS // dim, 1)
    programs = min(PROGRAMS, triton.cdiv(rows, block))
    sums = torch.empty(2, programs, dim, device=total.device)
    with torch.cuda.device_of(total):
        _backward[(programs,)](
            gradient.contiguous(), total, mean, scale, weight, seed, of_x, of_update, sums,
            rows, programs, drop, drops=drop > 0, dim=dim, block=block,
            num_warps=max(dim // NUMBERS, 1),
        )  # fmt: skip
    of_weight, of_bias = (added.sum(0).to(weight.dtype) for added in sums)
    return of_x, of_update, of_weight, of_bias


@triton.jit
def _forward(
    x,  # (rows, dim)
    update,  # (rows, dim)
    weight,  # (dim,)
    bias,  # (dim,)
    seed,  # () int64
    out,  # (rows, dim)
    total,  # (rows, dim)
    mean,  # (rows,)
    scale,  # (rows,)
    rows,
    eps,
    drop,
    drops: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0) * block + tl.arange(0, block)
    column = tl.arange(0, dim)
    here = row[:, None].to(tl.int64) * dim + column[None, :]
    inside = (row < rows)[:, None]
    added = tl.load(update + here, inside, 0).to(tl.float32)
    if drops:
        added = tl.where(_kept(here, seed, drop), added * (1 / (1 - drop)), 0.0)
    added += tl.load(x + here, inside, 0).to(tl.float32)
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
    gradient,  # (rows, dim)
    total,
    mean,
    scale,
    weight,
    seed,
    of_x,  # (rows, dim)
    of_update,  # (rows, dim)
    sums,  # (2, programs, dim)
    rows,
    programs,
    drop,
    drops: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
):
    column = tl.arange(0, dim)
    factor = tl.load(weight + column).to(tl.float32)[None, :]
    of_weight = tl.zeros([dim], tl.float32)
    of_bias = tl.zeros([dim], tl.float32)
    for first in tl.range(tl.program_id(0) * block, rows, programs * block, num_stages=4):
        row = first + tl.arange(0, block)
        here = row[:, None].to(tl.int64) * dim + column[None, :]
        inside = (row < rows)[:, None]
        incoming = tl.load(gradient + here, inside, 0).to(tl.float32)
        spread = tl.load(scale + row, row < rows, 0)[:, None]
        normal = tl.load(total + here, inside, 0).to(tl.float32)
        normal = (normal - tl.load(mean + row, row < rows, 0)[:, None]) * spread
        of_weight += tl.sum(incoming * normal, 0)
        of_bias += tl.sum(incoming, 0)
        incoming *= factor
        along = tl.sum(incoming * normal, 1)[:, None] / dim
        of_total = (incoming - tl.sum(incoming, 1)[:, None] / dim - normal * along) * spread
        tl.store(of_x + here, of_total, inside)
        if drops:
            of_total = tl.where(_kept(here, seed, drop), of_total * (1 / (1 - drop)), 0.0)
        tl.store(of_update + here, of_total, inside)
    own = tl.program_id(0) * dim + column
    tl.store(sums + own, of_weight)
    tl.store(sums + programs * dim + own, of_bias)


@triton.jit
def _kept(index, seed, drop):
    """False with the probability ``drop``; the same for the same seed and index."""
    number = tl.load(seed)
    factor = _mixed(number.to(tl.uint32) ^ _mixed((number >> 32).to(tl.uint32)))
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
