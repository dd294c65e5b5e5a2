"""GELU on the GPU, with the sums that a bias before it needs; see :mod:`oaxe.model.feed_forward`.

Both directions should take as long as their memory traffic: 2 and 3 passes over the activations.
For that the error function must be cheap, and the derivative share its exponential.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from oaxe.model.kernels.sums import add_up

BLOCK = 2048  # numbers of a program of the forward pass
COLUMNS = 1024  # of one of the backward pass
PROGRAMS = 1024  # of the backward pass for each block of columns; every one adds up many rows
WARPS = 4


def forward(x: Tensor) -> Tensor:
    """``x (rows, dim)``"""
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _forward[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), block=BLOCK, num_warps=WARPS)
    return out


def backward(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and its sum over the rows."""
    rows, dim = x.shape
    of_x = torch.empty_like(x)
    programs = min(PROGRAMS, rows)
    sums = torch.empty(1, programs, dim, device=x.device)
    with torch.cuda.device_of(x):
        _backward[(programs, triton.cdiv(dim, COLUMNS))](
            gradient, x, of_x, sums, rows, dim, programs, block=COLUMNS, num_warps=WARPS
        )
    return of_x, add_up(sums, x.dtype)[0]


@triton.jit
def _forward(x, out, n, block: tl.constexpr):
    here = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    value = tl.load(x + here, here < n, 0).to(tl.float32)
    below, _ = _normal(value)
    tl.store(out + here, value * below, here < n)


@triton.jit
def _backward(
    gradient,  # (rows, dim)
    x,  # (rows, dim)
    of_x,  # (rows, dim)
    sums,  # (programs, dim)
    rows,
    dim,
    programs,
    block: tl.constexpr,
):
    column = tl.program_id(1) * block + tl.arange(0, block)
    here = tl.program_id(0).to(tl.int64) * dim + column
    total = tl.zeros([block], tl.float32)
    for _ in range(tl.program_id(0), rows, programs):
        value = tl.load(x + here, column < dim, 0).to(tl.float32)
        incoming = tl.load(gradient + here, column < dim, 0).to(tl.float32)
        below, density = _normal(value)
        outgoing = incoming * (below + value * density)
        total += outgoing
        tl.store(of_x + here, outgoing, column < dim)
        here += programs * dim
    tl.store(sums + tl.program_id(0) * dim + column, total, column < dim)


@triton.jit
def _normal(x):
    """Distribution and density of the standard normal, to 1e-7.

    The error function by formula 7.1.26 of Abramowitz and Stegun (1964).
    """
    root = tl.rsqrt(1 + 0.3275911 * 0.7071067811865476 * tl.abs(x))
    t = root * root  # in two instructions; a quotient takes seven
    bell = tl.exp2(-0.7213475204444817 * x * x)  # exp(-x^2 / 2)
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    series = t * (0.254829592 + t * (-0.284496736 + t * series))
    tail = 0.5 * series * bell
    return tl.where(x < 0, tail, 1 - tail), 0.3989422804014327 * bell
