"""What the programs of a kernel have added up, each for itself, put together on the GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 512, 16, 8


def add_up(sums: Tensor, *dtypes: torch.dtype) -> list[Tensor]:
    """``sums (n, programs, dim)`` float32 to n tensors ``(dim,)``, at most 3, of these dtypes."""
    n, programs, dim = sums.shape
    totals = [torch.empty(dim, dtype=dtype, device=sums.device) for dtype in dtypes]
    one, two, three = (totals * 3)[:3]
    with torch.cuda.device_of(sums):
        _add_up[(triton.cdiv(dim, COLUMNS), n)](
            sums, one, two, three, programs, dim, rows=ROWS, columns=COLUMNS, num_warps=WARPS
        )
    return totals


@triton.jit
def _add_up(
    sums,  # (n, programs, dim)
    one,  # (dim,)
    two,  # (dim,)
    three,  # (dim,)
    programs,
    dim,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    n = tl.program_id(1)
    total = tl.zeros([rows, columns], tl.float32)
    for start in range(0, programs, rows):
        row = start + tl.arange(0, rows)
        here = (n * programs + row[:, None]) * dim + column[None, :]
        total += tl.load(sums + here, (row < programs)[:, None] & (column < dim)[None, :], 0)
    result = tl.sum(total, 0)
    if n == 0:
        tl.store(one + column, result, column < dim)
    elif n == 1:
        tl.store(two + column, result, column < dim)
    else:
        tl.store(three + column, result, column < dim)
