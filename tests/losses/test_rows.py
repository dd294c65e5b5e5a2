"""Rows that take part, against boolean indexing."""

import pytest
import torch

from oaxe.losses.rows import rows_of


@pytest.mark.parametrize("capacity", [0, 3, 5, 9])
def test_take_and_put_against_boolean_indexing(capacity: int) -> None:
    mask = torch.tensor([True, False, True, True, False, True, True, False])
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    rows = rows_of(mask, capacity)
    taken = rows.take(x)
    expected = torch.zeros(capacity, 3, dtype=torch.float64)
    expected[:5] = x.detach()[mask][:capacity]
    assert torch.equal(taken, expected)
    assert rows.real.sum() == min(capacity, 5)
    assert bool(rows.too_many) == (capacity < 5)
    back = rows.put(taken)
    kept = mask & (mask.cumsum(0) <= capacity)
    assert torch.equal(back, torch.where(kept[:, None], x, 0.0))
    assert torch.autograd.gradcheck(lambda x: rows.put(rows.take(x) ** 2) ** 2, x)


def test_no_rows() -> None:
    rows = rows_of(torch.zeros(0, dtype=torch.bool), 2)
    assert torch.equal(rows.take(torch.ones(0, 4)), torch.zeros(2, 4))
    assert not rows.too_many
