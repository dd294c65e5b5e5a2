"""Exact assignment, with the C solver and with its scipy fallback."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import oaxe
from oaxe.losses import assignment
from tests.matrices import KINDS, hard_matrices
from tests.oracles import cheapest_permutation

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(params=["c", "scipy"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "scipy":
        monkeypatch.setattr(assignment, "_solver", None)
    elif oaxe.assignment_backend() == "scipy":
        pytest.skip("the C solver was not built")
    assert oaxe.assignment_backend() == request.param
    return str(request.param)


def totals(cost: Tensor, column: Tensor) -> Tensor:
    return cost.double().gather(2, column.unsqueeze(2)).squeeze(2).sum(1)


def is_permutation(column: Tensor) -> bool:
    return bool((column.sort(dim=1).values == torch.arange(column.shape[1])).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", range(8))
def test_least_of_all_permutations(n: int, dtype: torch.dtype) -> None:
    cost = torch.randn(3, n, n).to(dtype)
    column = oaxe.linear_assignment(cost)
    assert column.dtype == torch.int64
    assert is_permutation(column)
    expected = [cheapest_permutation(c.double()) for c in cost]
    torch.testing.assert_close(totals(cost, column), torch.tensor(expected, dtype=torch.float64))


def test_never_worse_than_scipy_on_100_000_matrices(backend: str) -> None:
    rng = np.random.default_rng(0)
    solved, per_round = 0, 250
    wanted = 100_000 if backend == "c" else 5_000
    while solved < wanted:
        n = int(rng.integers(0, 24))
        cost = hard_matrices(KINDS[(solved // per_round) % len(KINDS)], rng, per_round, n)
        if (solved // per_round) % 2:
            cost = cost.astype(np.float32)
        rows = np.arange(n if rng.random() < 0.5 else rng.integers(0, n + 1))  # all, or fewer
        cost = cost[:, rows]
        column = oaxe.linear_assignment(torch.from_numpy(cost)).numpy()
        for c, ours in zip(cost.astype(np.longdouble), column, strict=True):
            theirs = linear_sum_assignment(c.astype(np.float64))[1]
            rounding = 1e-15 * n * np.abs(c).max(initial=0)
            assert c[rows, ours].sum() <= c[rows, theirs].sum() + rounding
            assert len(set(ours)) == len(rows)
            assert set(ours) <= set(range(n))
        solved += per_round


@pytest.mark.parametrize("n", [64, 100, 257])
@pytest.mark.parametrize("kind", KINDS)
def test_long_sentences(kind: str, n: int) -> None:
    cost = hard_matrices(kind, np.random.default_rng(n), 2, n)
    column = oaxe.linear_assignment(torch.from_numpy(cost))
    assert is_permutation(column)
    for c, ours in zip(cost, column.numpy(), strict=True):
        rows, theirs = linear_sum_assignment(c)
        best = c[rows, theirs].sum()
        assert c[rows, ours].sum() <= best + 1e-13 * n * np.abs(c).max()


@given(data=st.data(), n=st.integers(0, 9), batch=st.integers(0, 4))
def test_masked_rows_and_columns_take_no_part(data: st.DataObject, n: int, batch: int) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=batch * n, max_size=batch * n))
    mask = torch.tensor(bits, dtype=torch.bool).view(batch, n)
    cost = torch.randn(batch, n, n)
    garbage = torch.where(mask[:, :, None] & mask[:, None, :], cost, torch.nan)
    column = oaxe.linear_assignment(garbage, mask)
    assert is_permutation(column)
    for b in range(batch):
        kept = mask[b].nonzero().flatten()
        assert (column[b][~mask[b]] == (~mask[b]).nonzero().flatten()).all()
        alone = cost[b][kept][:, kept]
        ours = float(cost[b].gather(1, column[b].unsqueeze(1)).squeeze(1)[kept].double().sum())
        rows, columns = linear_sum_assignment(alone.double().numpy())
        assert ours == pytest.approx(float(alone.double()[rows, columns].sum()), abs=1e-5)


@pytest.mark.parametrize("shape", [(0, 0, 0), (0, 5, 5), (0, 2**20, 2**20), (3, 0, 0), (3, 1, 1)])
def test_empty_batches_and_costs(shape: tuple[int, int, int]) -> None:
    column = oaxe.linear_assignment(torch.randn(shape))
    assert column.shape == shape[:2]
    assert is_permutation(column)


def test_costs_near_the_end_of_float64() -> None:
    cost = torch.full((2, 5, 5), 1e308, dtype=torch.float64)
    cost[:, :, ::2] *= -1
    cost[1].diagonal().fill_(-1.5e308)
    column = oaxe.linear_assignment(cost)
    assert is_permutation(column)
    assert column[1].tolist() == [0, 1, 2, 3, 4]


def test_not_contiguous_and_requires_grad() -> None:
    cost = torch.randn(4, 6, 6, requires_grad=True)
    flipped = cost.transpose(1, 2)
    expected = oaxe.linear_assignment(flipped.detach().contiguous())
    assert torch.equal(oaxe.linear_assignment(flipped), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_names_batch_rows_that_are_not_finite(bad: float, dtype: torch.dtype) -> None:
    cost = torch.randn(20, 9, 9).to(dtype)
    cost[3, 0, 8] = bad
    cost[17, 8, 0] = bad
    with pytest.raises(ValueError, match=r"2 of 20 batch rows: 3, 17"):
        oaxe.linear_assignment(cost)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns"), [(3, 7), (7, 3), (1, 5), (5, 1), (0, 3), (3, 0), (30, 4), (4, 30)]
)
def test_rectangular_costs(rows: int, columns: int, dtype: torch.dtype) -> None:
    """As many pairs as there can be, at the total that scipy finds."""
    cost = torch.randn(20, rows, columns).to(dtype)
    found = oaxe.linear_assignment(cost)
    assert found.shape == (20, rows)
    for ours, costs in zip(found, cost.double(), strict=True):
        assert_least(ours, costs, list(range(columns)))


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (5, 5)])
def test_masked_columns_take_no_part(rows: int, columns: int) -> None:
    """As if they were not there, whatever they cost."""
    mask = torch.rand(50, columns) < 0.6
    mask[0] = False
    cost = torch.randn(50, rows, columns).masked_fill(~mask.unsqueeze(1), torch.nan)
    found = oaxe.linear_assignment(cost, column_mask=mask)
    for ours, costs, real in zip(found, cost.double(), mask, strict=True):
        assert_least(ours, costs, real.nonzero().flatten().tolist())


def assert_least(ours: Tensor, costs: Tensor, columns: list[int]) -> None:
    matched = (ours >= 0).nonzero().flatten()
    assert ours[ours < 0].eq(-1).all()
    assert len(matched) == min(len(ours), len(columns))
    assert len(set(ours[matched].tolist())) == len(matched)
    assert set(ours[matched].tolist()) <= set(columns)
    expected = costs[:, columns][linear_sum_assignment(costs[:, columns])].sum()
    torch.testing.assert_close(costs[matched, ours[matched]].sum(), expected)


def test_rectangular_costs_compiled() -> None:
    cost, mask = torch.randn(4, 7, 3), torch.tensor([[True, True, False]]).expand(4, -1)
    compiled = torch.compile(oaxe.linear_assignment, fullgraph=True)
    for options in ({}, {"column_mask": mask}):
        assert compiled(cost, **options).equal(oaxe.linear_assignment(cost, **options))


TRUE = torch.ones(1, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("cost", "options", "message"),
    [
        (torch.zeros(3, 3), {}, r"\(batch, rows, columns\), got \(3, 3\); add the batch"),
        (torch.zeros(1, 3, 3, dtype=torch.long), {}, "floating point"),
        (torch.zeros(1, 4, 4), {"mask": TRUE}, r"\(1, 4\).*\(1, 3\)"),
        (torch.zeros(1, 3, 3), {"mask": TRUE.float()}, "bool"),
        (torch.zeros(1, 3, 4), {"mask": TRUE}, r"square costs.*\(1, 3, 4\)"),
        (torch.zeros(1, 3, 3), {"mask": TRUE, "column_mask": TRUE}, "no column_mask"),
        (torch.zeros(1, 2, 3), {"column_mask": TRUE}, "at least as many rows.*2 and 3"),
        (torch.zeros(1, 4, 4), {"column_mask": TRUE}, r"column_mask.*\(1, 4\).*\(1, 3\)"),
    ],
)
def test_rejects_wrong_shapes(cost: Tensor, options: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.linear_assignment(cost, **options)


def test_rejects_what_is_not_a_tensor() -> None:
    with pytest.raises(TypeError, match="cost must be a tensor, got list"):
        oaxe.linear_assignment([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got Linear; give linear_weight.weight"):
        oaxe.linear_oaxe_loss(torch.zeros(1, 2, 4), torch.nn.Linear(4, 5), torch.zeros(1, 2))  # type: ignore[call-overload]


def test_many_threads_together() -> None:
    cost = torch.randn(200, 20, 20)
    expected = oaxe.linear_assignment(cost)
    results: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.append(oaxe.linear_assignment(cost)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(torch.equal(result, expected) for result in results)


def test_operator_is_registered_correctly() -> None:
    cost, mask = torch.randn(3, 5, 5), torch.rand(3, 5) < 0.7
    torch.library.opcheck(assignment._linear_assignment, (cost, mask))
    torch.library.opcheck(assignment._linear_assignment, (cost, None))
    assert torch.equal(
        torch.compile(oaxe.linear_assignment, fullgraph=True, backend="aot_eager")(cost, mask),
        oaxe.linear_assignment(cost, mask),
    )
