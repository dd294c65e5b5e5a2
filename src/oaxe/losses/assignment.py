"""Exact minimum-cost assignment of a batch: which word goes to which position."""

import warnings
from functools import cache
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import (
    check_devices,
    check_mask,
    check_tensors,
    is_float,
    triton_kernels,
)

try:
    from oaxe.losses import _solver
except ImportError:  # a source tree that was never built, or no C compiler at install time
    _solver = None  # type: ignore[assignment]


KINDS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]  # in the order of _solver.c
BAD = -2  # the first column of a problem whose costs are not finite


class NotFiniteError(ValueError):
    """A cost, and so a logit, is infinite or NaN; the message names the batch rows."""


def linear_assignment(
    cost: Tensor, mask: Tensor | None = None, *, column_mask: Tensor | None = None
) -> Tensor:
    r"""For every problem of a batch, the column of each row that makes the total cost the least.

    .. math:: \pi_b = \arg\min_\pi \sum_i \mathrm{cost}[b, i, \pi(i)]

    No two rows get the same column; on the longer side, rows or columns are left over. Exact: on
    the CPU the arithmetic is float64 inside, whatever the dtype of the costs. On a GPU it is
    float64 for float64 costs and float32 for others; a total is then at most
    ``2**-24 * n * max|cost|`` above the least, the rounding of one float32 a row. Where several
    assignments share the least cost, any one of them is returned. Not differentiable.

    Args:
        cost: ``(batch, rows, columns)`` of half, single or double precision. CUDA costs are solved
            on the GPU and nothing waits for it. Only above 1,024 columns, or without Triton, they
            go to the host and back. A pair that must not be has a finite cost, larger than any
            total of others.
        mask: ``(batch, n)`` bool, for square costs: True for the rows *and* columns that take part;
            they need not be a prefix. Default: all of them.
        column_mask: ``(batch, columns)`` bool, True for the columns that take part, where they are
            the fewer (objects, for a set of slots) or as many as rows. Not with ``mask``.

    Returns:
        ``(batch, rows)`` int64: the column of each row, -1 if it has none. With ``mask``, a row
        that takes no part gets itself, so each result is a permutation of ``0..n-1``.

    Raises:
        ValueError: a shape or dtype is wrong; as NotFiniteError, a cost that takes part is infinite
            or NaN (the message names the batch rows). On a GPU, such a problem gets the identity,
            and the error comes with a later call, or from :func:`check_costs`.

    Example:
        >>> linear_assignment(torch.tensor([[[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]]]))
        tensor([[1, 0, 2]])
        >>> linear_assignment(torch.tensor([[[4.0], [2.0], [3.0]]]))  # three rows for one column
        tensor([[-1,  0, -1]])
    """
    check_tensors(cost=cost)
    if cost.dim() != 3:
        hint = "; add the batch with cost.unsqueeze(0)" if cost.dim() == 2 else ""
        raise ValueError(f"cost must be (batch, rows, columns), got {tuple(cost.shape)}{hint}")
    if not is_float(cost):
        raise ValueError(f"cost must be floating point, got {cost.dtype}; use cost.float()")
    rows, columns = cost.shape[1:]
    if mask is not None and (rows != columns or column_mask is not None):
        raise ValueError(
            "mask removes rows and columns of the same number: it needs square costs and no "
            f"column_mask; got costs of shape {tuple(cost.shape)}"
        )
    if column_mask is not None and rows < columns:
        raise ValueError(
            f"column_mask needs at least as many rows as columns, got {rows} and {columns}; "
            "transpose the costs, or add rows"
        )
    check_mask("mask", mask, (cost.shape[0], rows))
    check_mask("column_mask", column_mask, (cost.shape[0], columns))
    for name, given in (("mask", mask), ("column_mask", column_mask)):
        if given is not None:
            check_devices("costs", cost, **{name: given})
    return _linear_assignment(cost.detach(), mask, column_mask)


def assignment_backend() -> str:
    """What solves assignments on the CPU: ``"c"``, or ``"scipy"`` where that was not built."""
    return "scipy" if _solver is None else "c"


def _on_the_host(cost: Tensor, mask: Tensor | None, column_mask: Tensor | None = None) -> Tensor:
    given = mask if column_mask is None else column_mask
    given = None if given is None else given.cpu().contiguous()
    by_column = column_mask is not None or cost.shape[1] > cost.shape[2]
    solve = _solve_with_scipy if _solver is None else _solve_with_c
    column, not_finite = solve(cost.cpu(), given, by_column)
    if not_finite:
        rows = column[:, 0].eq(BAD).nonzero().flatten().tolist()
        raise _not_finite(rows, f"is infinite or NaN in {len(rows)} of {len(column)} batch rows")
    return column.to(cost.device)


def _shape(cost: Tensor, mask: Tensor | None, column_mask: Tensor | None = None) -> Tensor:
    return cost.new_empty(cost.shape[:2], dtype=torch.int64)


def _on_a_gpu(cost: Tensor, mask: Tensor | None, column_mask: Tensor | None = None) -> Tensor:
    kernel, (batch, rows, columns) = triton_kernels("assignment"), cost.shape
    if kernel is None or max(rows, columns) > kernel.LONGEST:
        return _on_the_host(cost, mask, column_mask)
    if column_mask is None and rows <= columns:
        return _solve_with_triton(kernel, cost, mask)
    number = torch.arange(columns, device=cost.device).expand(batch, -1)
    if column_mask is not None:  # columns that cost the same everywhere change nothing
        cost = cost.masked_fill(~column_mask.unsqueeze(1), 0.0)
        number = number.where(column_mask, -1)
    row = _solve_with_triton(kernel, cost.transpose(1, 2), None)
    return number.new_full((batch, rows), -1).scatter(1, row, number)


def _solve_with_triton(kernel: ModuleType, cost: Tensor, mask: Tensor | None) -> Tensor:
    """Of no more rows than columns."""
    batch, rows, columns = cost.shape
    if rows < columns:  # rows that cost the same everywhere change nothing
        cost = F.pad(cost, (0, 0, 0, columns - rows))
    column: Tensor = kernel.solve(cost, mask, _marks(cost.device, batch))
    return column[:, :rows].clone() if rows < columns else column


# A registered operator, so that torch.compile takes it as one opaque call. torch.library.custom_op
# would do, but runs so much more of Python that a small call takes twice as long.
torch.library.define(
    "oaxe::linear_assignment",
    "(Tensor cost, Tensor? mask, Tensor? column_mask=None) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.impl("oaxe::linear_assignment", "default", _on_the_host)
torch.library.impl("oaxe::linear_assignment", "cuda", _on_a_gpu)
torch.library.register_fake("oaxe::linear_assignment", _shape)
_linear_assignment = torch.ops.oaxe.linear_assignment.default


# For each GPU, the memory of the host in which kernels mark the batch rows that are not finite. The
# host looks at it when it comes by anyway, so a training step never waits. Blocks that became too
# small are kept: a captured CUDA graph may still write to them.
_marked: dict[torch.device, list[Tensor]] = {}


def check_costs() -> None:
    """Wait for the GPUs, and raise NotFiniteError if a cost that they were given is not finite."""
    for device in _marked:
        torch.cuda.synchronize(device)
        _marks(device, 0)


def forget_costs() -> None:
    """Wait for the GPUs, and drop what they have found, as after a step that is given up."""
    for device, blocks in _marked.items():
        torch.cuda.synchronize(device)
        for block in blocks:
            block.zero_()


def _marks(device: torch.device, batch: int) -> Tensor:
    """Room for the marks of a batch; an error if a batch before has left some."""
    blocks = _marked.setdefault(device, [])
    for block in blocks:
        rows = block.nonzero().flatten().tolist()
        if rows:
            block.zero_()
            raise _not_finite(
                rows, f"was infinite or NaN in {len(rows)} batch rows of a call before, on {device}"
            )
    if not blocks or len(blocks[-1]) < batch:
        blocks.append(torch.zeros(max(batch, 8_192), dtype=torch.uint8, pin_memory=True))
    return blocks[-1]


def _not_finite(rows: list[int], what: str) -> NotFiniteError:
    shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    return NotFiniteError(
        f"cost {what}: {shown}; look at the logits or costs of those rows (a pair that must not be "
        "needs a finite cost as well)"
    )


def _solve_with_c(cost: Tensor, mask: Tensor | None, by_column: bool) -> tuple[Tensor, int]:
    """Reads the costs where they lie. By column, these choose among the rows, as the mask says."""
    column = torch.empty(cost.shape[:2], dtype=torch.int64)
    if not column.numel():
        return column, 0
    (batch, rows, columns), (batch_stride, row_stride, column_stride) = cost.shape, cost.stride()
    if by_column:
        rows, columns, row_stride, column_stride = columns, rows, column_stride, row_stride
    not_finite = _solver.solve(
        cost.data_ptr(), KINDS.index(cost.dtype), batch, rows, columns,
        batch_stride, row_stride, column_stride,
        0 if mask is None else mask.data_ptr(), by_column, column.data_ptr(),
    )  # fmt: skip
    return column, not_finite


@cache
def _say_once() -> None:
    warnings.warn(
        "oaxe is installed without its compiled part: scipy solves assignments on the CPU, 5 to "
        "30 times slower. Install a wheel that has it, or a C compiler and then oaxe again"
        " (pip install --force-reinstall --no-deps --no-cache-dir)",
        stacklevel=2,
    )


def _solve_with_scipy(cost: Tensor, mask: Tensor | None, by_column: bool) -> tuple[Tensor, int]:
    """The same answers, 5 to 30 times slower."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    _say_once()
    batch, rows, columns = cost.shape
    column = np.full((batch, rows), -1)
    not_finite = 0
    for b, costs in enumerate(cost.double().numpy()):
        i, j = np.arange(rows), np.arange(columns)
        if mask is not None:
            j = mask[b].numpy().nonzero()[0]
            if not by_column:
                column[b], i = i, j
        costs = costs[np.ix_(i, j)]
        if np.isfinite(costs).all():
            # an exact scale that keeps sums of the largest float64 costs finite
            chosen, of_them = linear_sum_assignment(costs * 2.0**-60)
            column[b, i[chosen]] = j[of_them]
        else:
            column[b, 0] = BAD
            not_finite += 1
    return torch.from_numpy(column), not_finite
