"""Matching on a CUDA device: ``pytest -m gpu``.

OAXE_CAMPAIGN sets how many assignments are compared with scipy's, OAXE_SEED which.
"""

import os

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import oaxe
from oaxe.losses import NotFiniteError, assignment
from tests.gpu import GPU
from tests.matrices import KINDS, hard_matrices

pytestmark = GPU
CAMPAIGN = int(os.environ.get("OAXE_CAMPAIGN", "20000"))


def check_exact(cost: Tensor, mask: Tensor) -> float:
    """On the GPU against scipy in float64, every problem.

    Returns how much of the allowed rounding the worst problem needed.
    """
    n = cost.shape[1]
    column = oaxe.linear_assignment(cost.cuda(), mask.cuda()).cpu()
    position = torch.arange(n)
    assert torch.equal(column.sort(dim=1).values, position.expand_as(column))
    assert (column == position)[~mask].all()
    unit = 1e-14 if cost.dtype == torch.float64 else 2.0**-24
    worst = 0.0
    for costs, takes_part, ours in zip(cost.double(), mask, column, strict=True):
        positions = takes_part.nonzero().flatten()
        inner = costs[positions][:, positions].numpy()
        best = inner[linear_sum_assignment(inner)].sum()
        excess = float(costs[positions, ours[positions]].sum()) - best
        allowed = unit * n * np.abs(inner).max(initial=0)
        assert excess <= allowed
        worst = max(worst, excess / max(allowed, 1e-300))
    return worst


def random_masks(rng: np.random.Generator, batch: int, n: int, turn: int) -> Tensor:
    """By turns: all positions, prefixes, any."""
    if turn % 3 == 0:
        return torch.ones(batch, n, dtype=torch.bool)
    if turn % 3 == 1:
        lengths = torch.from_numpy(rng.integers(0, n + 1, size=(batch, 1)))
        return torch.arange(n) < lengths
    return torch.from_numpy(rng.random((batch, n)) < 0.7)


def test_assignment_campaign() -> None:
    """Random and adversarial problems, most of them short; every class of sizes comes up."""
    rng = np.random.default_rng(int(os.environ.get("OAXE_SEED", "0")))
    solved = turn = 0
    worst = 0.0
    while solved < CAMPAIGN:
        longest = 1024 if turn % 100 == 99 else 200 if turn % 10 == 9 else 40
        n = int(rng.integers(0, longest + 1))
        batch = int(np.clip(4e5 / max(n, 1) ** 2, 2, 1000))
        cost = hard_matrices(KINDS[turn % len(KINDS)], rng, batch, n)
        dtype = [torch.float32, torch.float64, torch.bfloat16][turn % 5 % 3]
        mask = random_masks(rng, batch, n, turn)
        worst = max(worst, check_exact(torch.from_numpy(cost).to(dtype), mask))
        solved += batch
        turn += 1
    print(f"{solved} problems, worst excess {worst:.4f} of the allowed rounding")
    oaxe.check_costs()


@pytest.mark.parametrize("n", [32, 33, 64, 65, 128, 129, 256, 257, 512, 513, 1023, 1024])
def test_assignment_at_the_borders_of_the_classes(n: int) -> None:
    cost = torch.randn(3, n, n)
    mask = torch.arange(n) < torch.tensor([[n], [n // 2], [n // 2 + 1]])
    check_exact(cost, mask)


def test_longer_than_the_kernel_takes() -> None:
    check_exact(torch.randn(1, 1_100, 1_100), torch.ones(1, 1_100, dtype=torch.bool))


@pytest.mark.parametrize(("rows", "columns"), [(5, 12), (12, 5), (9, 9), (100, 20)])
def test_rectangles_as_on_the_cpu(rows: int, columns: int) -> None:
    cost = torch.rand(50, rows, columns)
    masks: list[dict[str, Tensor]] = [{}]
    if rows >= columns:
        masks.append({"column_mask": torch.rand(50, columns) < 0.7})
    for options in masks:
        on_gpu = {name: mask.cuda() for name, mask in options.items()}
        found = oaxe.linear_assignment(cost.cuda(), **on_gpu).cpu()
        expected = oaxe.linear_assignment(cost, **options)
        assert (found >= 0).sum(1).equal((expected >= 0).sum(1))
        totals = [
            cost.gather(2, column.clamp(min=0).unsqueeze(2)).squeeze(2).where(column >= 0, 0).sum(1)
            for column in (found, expected)
        ]
        torch.testing.assert_close(*totals)


def test_assignment_is_deterministic() -> None:
    cost = torch.randn(500, 60, 60, device="cuda").round()
    first = oaxe.linear_assignment(cost)
    assert all(torch.equal(oaxe.linear_assignment(cost), first) for _ in range(5))


def test_costs_that_are_not_finite_are_named_later() -> None:
    cost = torch.randn(20, 9, 9, device="cuda")
    cost[3, 0, 8], cost[17, 8, 0] = torch.nan, torch.inf
    column = oaxe.linear_assignment(cost)
    assert column[3].tolist() == list(range(9))  # also waits for the device
    with pytest.raises(NotFiniteError, match=r"2 batch rows of a call before.*: 3, 17"):
        oaxe.linear_assignment(cost[:1])
    oaxe.linear_assignment(cost)
    with pytest.raises(NotFiniteError, match=": 3, 17"):
        oaxe.check_costs()
    oaxe.check_costs()
    oaxe.linear_assignment(cost)
    assignment.forget_costs()
    oaxe.check_costs()


def test_assignment_in_a_cuda_graph() -> None:
    cost, other = torch.randn(2, 50, 70, 70, device="cuda")
    expected = oaxe.linear_assignment(other)
    given = cost.clone()
    oaxe.linear_assignment(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        column = oaxe.linear_assignment(given)
    given.copy_(other)
    graph.replay()
    assert torch.equal(column, expected)


def test_operators_are_registered_correctly() -> None:
    cost, mask = torch.randn(3, 5, 5, device="cuda"), torch.rand(3, 5, device="cuda") < 0.7
    torch.library.opcheck(assignment._linear_assignment, (cost, mask))
    torch.library.opcheck(assignment._linear_assignment, (cost, None))
