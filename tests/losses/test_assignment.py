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


@pytest.mark.parametrize(("rows", "columns"), [(40, 5), (5, 40)])
def test_rectangular_costs_near_the_end_of_float64(rows: int, columns: int) -> None:
    cost = 1e308 * torch.randn(20, rows, columns, dtype=torch.float64).clamp(-1.5, 1.5)
    for ours, one in zip(oaxe.linear_assignment(cost), cost, strict=True):
        assert_least(ours, 2.0**-60 * one, list(range(columns)))  # exact, and sums are finite


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


def laid_out(cost: Tensor, layout: str) -> Tensor:
    """The same costs, as they may lie in memory."""
    batch, rows, columns = cost.shape
    if layout == "transposed":
        return cost.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":  # every second of everything, from an odd address
        larger = cost.new_full((2 * batch + 1, 2 * rows + 1, 2 * columns + 1), torch.nan)
        larger[1::2, 1::2, 1::2] = cost
        return larger[1::2, 1::2, 1::2]
    if layout == "first columns":  # of more: those of a row lie side by side, the rows apart
        return torch.cat([cost, torch.full_like(cost, torch.nan)], dim=2)[:, :, :columns]
    if layout == "batch last":
        return cost.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return cost


LAYOUTS = ["contiguous", "transposed", "sliced", "first columns", "batch last"]
SHAPES = [
    (1, 1), (1, 100), (100, 1), (2, 3), (9, 9), (70, 70), (33, 32), (32, 33), (65, 64), (100, 5),
    (5, 100), (300, 7), (300, 70), (70, 300),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_costs_where_they_lie(dtype: torch.dtype, layout: str) -> None:
    for rows, columns in SHAPES:
        several = torch.randn(3, rows, columns, dtype=torch.float64)
        for costs in (several, several.round(), several + 3 * torch.randn(3, rows, 1)):
            cost = laid_out(costs.to(dtype), layout)
            for ours, one in zip(oaxe.linear_assignment(cost), cost.double(), strict=True):
                assert_least(ours, one, list(range(columns)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_columns_where_they_lie(dtype: torch.dtype, layout: str) -> None:
    for rows, columns in [(9, 9), (100, 5), (70, 70), (300, 66)]:
        mask = torch.rand(5, columns) < torch.linspace(0, 1, 5).unsqueeze(1)
        cost = torch.randn(5, rows, columns).to(dtype).masked_fill(~mask.unsqueeze(1), torch.nan)
        found = oaxe.linear_assignment(laid_out(cost, layout), column_mask=mask)
        for ours, one, real in zip(found, cost.double(), mask, strict=True):
            assert_least(ours, one, real.nonzero().flatten().tolist())


@pytest.mark.parametrize("shape", [(0, 4, 9), (4, 6, 3), (4, 3, 6), (4, 5, 5)])
def test_expanded_costs(shape: tuple[int, int, int]) -> None:
    """The same costs for every problem, row or column."""
    for of in [(1, *shape[1:]), (shape[0], 1, shape[2]), (*shape[:2], 1), (1, 1, 1)]:
        cost = torch.randn(of).expand(shape)
        found = oaxe.linear_assignment(cost)
        assert found.shape == shape[:2]
        for ours, one in zip(found, cost.double(), strict=True):
            assert_least(ours, one, list(range(shape[2])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(40, 40), (300, 20), (20, 300)])
def test_every_number_of_16_bits(rows: int, columns: int, dtype: torch.dtype) -> None:
    """No two of them are taken for the same, from the smallest to the largest."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    bits = bits[bits.view(dtype).isfinite()]
    rounding = 0 if dtype == torch.float16 else 1e-12  # sums of float16 are exact
    for without in (0, 0x7800, 0x7C00):  # bits of the exponent: of all sizes, small and subnormal
        shuffled = (bits & ~without)[torch.randperm(len(bits))]
        cost = shuffled[: len(bits) // (rows * columns) * rows * columns].view(dtype)
        cost = cost.view(-1, rows, columns)
        for ours, one in zip(oaxe.linear_assignment(cost), cost.double(), strict=True):
            matched = (ours >= 0).nonzero().flatten()
            total = one[matched, ours[matched]].sum()
            least = one[linear_sum_assignment(one)].sum()
            torch.testing.assert_close(total, least, rtol=rounding, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_cost_that_is_not_finite_escapes(bad: float, dtype: torch.dtype) -> None:
    """Wherever it is, and whatever the layout: one in each problem of a batch but the last."""
    for layout in LAYOUTS:
        for rows, columns in [(4, 3), (3, 4), (3, 3), (40, 2)]:
            cost = torch.randn(rows * columns + 1, rows, columns).to(dtype)
            cost[:-1].view(rows * columns, -1).fill_diagonal_(bad)
            with pytest.raises(oaxe.NotFiniteError, match=f"in {len(cost) - 1} of {len(cost)} "):
                oaxe.linear_assignment(laid_out(cost, layout))
            alone = torch.arange(columns).eq(1).expand(len(cost), -1)  # the second column
            if rows >= columns:
                with pytest.raises(oaxe.NotFiniteError, match=f"in {rows} of {len(cost)} .*: 1, "):
                    oaxe.linear_assignment(laid_out(cost, layout), column_mask=alone)


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
