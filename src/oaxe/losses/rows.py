"""Rows that take part, moved together: what is padding is then not computed.

Sizes are fixed beforehand and nothing waits for the device, so that a CUDA graph can hold it.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import check_whole


class Rows(NamedTuple):
    """Which of n rows lie where in a smaller tensor of ``capacity`` rows, and back."""

    origin: Tensor  # (capacity,) int64: the row that is here; n where there is none
    slot: Tensor  # (n,) int64: where a row is; capacity if it takes no part
    too_many: Tensor  # () bool: more rows take part than fit

    @property
    def real(self) -> Tensor:
        """``(capacity,)`` bool"""
        return self.origin < len(self.slot)

    def take(self, x: Tensor) -> Tensor:
        """``(n, ...)`` to ``(capacity, ...)``, zeros behind the last; differentiable."""
        return _Move.apply(x, self.origin, self.slot)  # type: ignore[no-untyped-call]

    def put(self, x: Tensor) -> Tensor:
        """``(capacity, ...)`` to ``(n, ...)``, zeros for rows that take no part; differentiable."""
        return _Move.apply(x, self.slot, self.origin)  # type: ignore[no-untyped-call]


def rows_of(mask: Tensor, capacity: int) -> Rows:
    """Those that are True in ``mask (n,)``, in their order.

    Example:
        >>> rows = rows_of(torch.tensor([False, True, True, False]), capacity=3)
        >>> rows.take(torch.tensor([5.0, 6.0, 7.0, 8.0]))
        tensor([6., 7., 0.])
        >>> rows.put(torch.tensor([1.0, 2.0, 3.0]))
        tensor([0., 1., 2., 0.])
    """
    check_whole("capacity", capacity)
    if capacity < 0:
        raise ValueError(f"capacity is a number of positions, 0 or more, got {capacity}")
    count = mask.cumsum(0)
    slot = torch.where(mask, count - 1, capacity).clamp(max=capacity)
    row = torch.arange(len(mask), device=mask.device)
    # All that has no place goes to one more, which is cut off.
    origin = row.new_full((capacity + 1,), len(mask)).scatter_(0, slot, row)[:capacity]
    return Rows(origin, slot, count[-1:].sum() > capacity)


class _Move(torch.autograd.Function):
    """Rows go one to one, so the gradient goes back as it came: nothing is added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(there, back)
        padded = F.pad(x, (0, 0) * (x.dim() - 1) + (0, 1))  # zeros, for who has no place
        return padded.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        there, back = ctx.saved_tensors
        return _Move.apply(gradient, back, there), None, None  # type: ignore[no-untyped-call]
