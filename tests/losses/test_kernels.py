"""The Triton kernels, small: compiled where there is a GPU, else in Triton's interpreter."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from oaxe.losses import dag, softmax_rows
from oaxe.losses.axe import _monotone_alignment
from oaxe.losses.ctc import CTCLattice, _backward, _sum
from oaxe.losses.lattice import best_states
from tests.matrices import KINDS, hard_matrices

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from oaxe.losses.kernels import alignment, assignment, lattice, softmax

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def solve(cost: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    marks = torch.zeros(len(cost), dtype=torch.uint8, device=DEVICE)
    given = None if mask is None else mask.to(DEVICE)
    return assignment.solve(cost.to(DEVICE), given, marks).cpu(), marks.cpu()


def check_best(cost: Tensor, mask: Tensor, column: Tensor) -> None:
    """Each a permutation, the identity outside of the mask, and as good as scipy's."""
    n = cost.shape[1]
    assert torch.equal(column.sort(dim=1).values, torch.arange(n).expand_as(column))
    for costs, takes_part, ours in zip(cost.double(), mask, column, strict=True):
        positions = takes_part.nonzero().flatten()
        assert (ours == torch.arange(n))[~takes_part].all()
        inner = costs[positions][:, positions].numpy()
        best = inner[linear_sum_assignment(inner)].sum()
        total = float(costs[positions, ours[positions]].sum())
        rounding = 1e-14 if cost.dtype == torch.float64 else 2.0**-24
        assert total <= best + rounding * n * np.abs(inner).max(initial=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_assignment_of_hard_matrices(kind: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 7):
        cost = torch.from_numpy(hard_matrices(kind, rng, 2, n)).to(dtype)
        column, marks = solve(cost)
        check_best(cost, torch.ones(2, n, dtype=torch.bool), column)
        assert not marks.any()


@pytest.mark.parametrize("n", [31, 32, 33, 70])
def test_assignment_in_every_size_class(n: int) -> None:
    """Short sentences in a wide batch: each is solved by exactly one of the launches."""
    lengths = torch.tensor([0, 1, min(n, 17), n])
    mask = torch.arange(n) < lengths.unsqueeze(1)
    cost = torch.randn(4, n, n)
    cost[3] -= 4 * torch.eye(n)[torch.randperm(n)]  # an easy one: the interpreter is slow
    column, _ = solve(torch.where(mask.unsqueeze(1), cost, torch.nan), mask)
    check_best(cost, mask, column)


def test_assignment_under_scattered_masks() -> None:
    mask = torch.rand(5, 9) < 0.6
    mask[0] = False
    cost = torch.randn(5, 9, 9)
    garbage = torch.where(mask[:, :, None] & mask[:, None, :], cost, torch.inf)
    column, marks = solve(garbage, mask)
    check_best(cost, mask, column)
    assert not marks.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_assignment_marks_what_is_not_finite(bad: float, dtype: torch.dtype) -> None:
    cost = torch.randn(3, 4, 4).to(dtype)
    cost[1, 0, 3] = bad
    column, marks = solve(cost)
    assert marks.tolist() == [0, 1, 0]
    assert column[1].tolist() == [0, 1, 2, 3]
    check_best(cost[::2], torch.ones(2, 4, dtype=torch.bool), column[::2])


def test_assignment_near_the_end_of_float64() -> None:
    cost = torch.full((2, 5, 5), 1e308, dtype=torch.float64)
    cost[:, :, ::2] *= -1
    cost[1].diagonal().fill_(-1.5e308)
    assert solve(cost)[0][1].tolist() == [0, 1, 2, 3, 4]


def test_assignment_near_the_end_of_float32() -> None:
    cost = torch.full((2, 5, 5), 3e38)
    cost[:, :, ::2] *= -1
    cost[1].diagonal().fill_(-3.4e38)
    assert solve(cost)[0][1].tolist() == [0, 1, 2, 3, 4]


def test_assignment_beside_forbidden_pairs() -> None:
    """A few enormous costs must not blur the small ones."""
    cost = torch.randn(2, 9, 9).masked_fill(torch.rand(2, 9, 9) < 0.3, 1e9)
    cost.diagonal(dim1=1, dim2=2).fill_(3.0)
    column, _ = solve(cost)
    for costs, ours in zip(cost.double(), column, strict=True):
        best = float(costs[linear_sum_assignment(costs.numpy())].sum())
        assert float(costs[torch.arange(9), ours].sum()) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("n", "m", "delta"), [(4, 5, 1.0), (6, 3, 2.5), (0, 4, 1.0), (3, 1, 1.0), (35, 40, 0.5)]
)
def test_alignment_equals_the_one_in_torch(n: int, m: int, delta: float) -> None:
    words, blanks = 3 * torch.rand(3, m, n), 3 * torch.rand(3, m)
    lengths = torch.randint(n + 1, (3,)), torch.randint(m + 1, (3,))
    lengths[0][0], lengths[1][0] = n, m
    expected = _monotone_alignment(words, blanks, *lengths, delta)
    n_targets, n_predictions = (x.to(DEVICE) for x in lengths)
    found = alignment.align(words.to(DEVICE), blanks.to(DEVICE), n_targets, n_predictions, delta)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (6, 3), (9, 0), (4, 4), (30, 20)])
def test_ctc_equals_the_one_in_torch(m: int, n: int) -> None:
    emissions = torch.randn(4, m, n + 1).log_softmax(-1)
    emissions[1, m // 2] = -torch.inf  # no path
    emissions[2, m // 2, :-1] = -torch.inf  # a blank that is shown
    words = torch.randint(3, (4, n))
    lengths = torch.randint(m + 1, (4,)), torch.randint(n + 1, (4,))
    lengths[0][:2], lengths[1][:2] = m, n
    given = emissions, words, *lengths
    there = [x.to(DEVICE) for x in given]
    total, alpha = _sum(*given)
    ours, their_alpha = lattice.ctc_sum(*there)
    torch.testing.assert_close(ours.cpu(), total)
    weight = torch.randn(4)
    expected = _backward(weight, total, alpha, *given)
    found = lattice.ctc_backward(weight.to(DEVICE), ours, their_alpha, *there)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(lattice.ctc_best_path(*there).cpu(), best_states(CTCLattice(*given)))


def graphs(words: int, vertices: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four sentences: whole, without a path, and two that are shorter."""
    emissions = torch.randn(4, words, vertices) - 2
    links = torch.randn(4, vertices, vertices).masked_fill(
        torch.rand(4, vertices, vertices) < 0.1, -torch.inf
    )
    links[:, torch.arange(vertices - 1), torch.arange(1, vertices)] = -1.0
    emissions[1, words // 2] = -torch.inf
    n_words = torch.tensor([words, words, 0, 1]).clamp(max=words)
    n_words[2:] = torch.randint(words + 1, (2,))
    n_vertices = torch.tensor([vertices, vertices, 0, 0])
    n_vertices[2:] = torch.randint(vertices + 1, (2,))
    links[3, n_vertices[3] :] = torch.nan  # what takes no part may hold anything
    links[3, :, n_vertices[3] :] = torch.nan
    emissions[3, :, n_vertices[3] :] = torch.nan
    links = torch.where(torch.ones(vertices, vertices).triu(1) > 0, links, torch.nan)
    return emissions, links, n_words, n_vertices


@pytest.mark.parametrize(("width", "many", "tile"), [(512, 32, 64), (4, 2, 4), (4, 8, 2)])
@pytest.mark.parametrize(("words", "vertices"), [(1, 1), (2, 6), (5, 9), (5, 5), (6, 5)])
def test_graphs_equal_those_in_torch(
    words: int, vertices: int, width: int, many: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice, "WIDTH", width)
    monkeypatch.setattr(lattice, "MANY", many)
    monkeypatch.setattr(lattice, "TILE", tile)
    given = graphs(words, vertices)
    there = [x.to(DEVICE) for x in given]
    total, alpha = dag._sum(*given)
    ours, their_alpha = lattice.dag_sum(*there)
    torch.testing.assert_close(ours.cpu(), total)
    assert bool(total[0].isfinite()) == (words <= vertices and (words > 1 or vertices == 1))
    weight = torch.randn(4)
    expected = dag._backward(weight, total, alpha, *given)
    found = lattice.dag_backward(weight.to(DEVICE), ours, their_alpha, *there)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, atol=1e-5, rtol=1e-4)
    path = lattice.dag_best_path(*there).cpu()
    assert torch.equal(path, best_states(dag.DAGLattice(*given)))


def test_best_paths_among_equals_are_the_same_as_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "WIDTH", 4)
    monkeypatch.setattr(lattice, "MANY", 2)
    sizes = torch.tensor([4, 3]), torch.tensor([9, 7])
    given = torch.zeros(2, 4, 9), torch.zeros(2, 9, 9), *sizes
    path = lattice.dag_best_path(*(x.to(DEVICE) for x in given)).cpu()
    assert torch.equal(path, best_states(dag.DAGLattice(*given)))
    labels = torch.zeros(2, 9, 5), torch.arange(4).expand(2, 4).contiguous(), sizes[1], sizes[0]
    states = lattice.ctc_best_path(*(x.to(DEVICE) for x in labels)).cpu()
    assert torch.equal(states, best_states(CTCLattice(*labels)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 50, 128, 300])
def test_rows_of_logits(vocab: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "BLOCK", 128)  # several blocks a row
    logits = (3 * torch.randn(4, vocab)).to(dtype).to(DEVICE)
    logits[0, : min(128, vocab - 1)] = -torch.inf
    words = torch.randint(vocab, (4,), device=DEVICE)
    words[0] = vocab - 1
    mask = torch.tensor([True, True, False, True], device=DEVICE)
    tolerance: dict[str, Any] = {"atol": 1e-6, "rtol": 1e-5} if dtype == torch.float32 else {}
    options = [(None, 0.0, -1.0, True), (None, 0.1, 0.02, True), (None, 0.1, -1.0, False)]
    weight = torch.rand(vocab, device=DEVICE)
    options += [(weight, 0.0, -1.0, True), (weight, 0.1, 0.02, True)]  # type: ignore[list-item]
    for class_weights, smoothing, least, differentiate in options:
        if smoothing:
            logits = logits.clamp(min=-9)  # the mean of the logits must be finite
        given = words, mask, class_weights, smoothing, least, differentiate
        ours, theirs = logits.clone(), logits.clone()
        losses, kept = softmax.cross_entropy(ours, *given)
        expected, expected_kept = softmax_rows.cross_entropy(theirs, *given)
        torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(kept, expected_kept)
        if differentiate:
            torch.testing.assert_close(ours, theirs, **tolerance)
        assert differentiate != torch.equal(ours, logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("result", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 128, 300])
def test_softmax_of_rows(
    vocab: int, result: torch.dtype, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "BLOCK", 128)
    logits = (3 * torch.randn(6, vocab)).to(dtype).to(DEVICE)
    logits[0, : min(128, vocab - 1)] = -torch.inf
    expected = softmax_rows.logsumexp(logits.clone())
    torch.testing.assert_close(softmax.logsumexp(logits), expected)
    factor = torch.randn(6, device=DEVICE)
    theirs = softmax_rows.weighted_softmax(logits.clone(), expected, factor, result)
    ours = softmax.weighted_softmax(logits, expected, factor, result)
    assert ours.dtype == theirs.dtype == result
    torch.testing.assert_close(ours, theirs)


def test_rows_of_logits_that_are_not_finite() -> None:
    """As in PyTorch: a smoothed label has infinite cost where a logit is -inf; NaN stays NaN."""
    logits = torch.tensor([[1.0, -torch.inf, 2.0], [1.0, torch.nan, 2.0]], device=DEVICE)
    words = torch.tensor([0, 2], device=DEVICE)
    expected = F.cross_entropy(logits, words, reduction="none", label_smoothing=0.1)
    assert expected.isinf().tolist() == [True, False]
    assert expected.isnan().tolist() == [False, True]
    for rows in (softmax, softmax_rows):
        found, _ = rows.cross_entropy(logits.clone(), words, words >= 0, None, 0.1, 0.0, False)
        torch.testing.assert_close(found, expected, equal_nan=True)
        given = logits.clone()
        losses, kept = rows.cross_entropy(given, words, words >= 0, None, 0.0, 0.3, True)
        assert kept.tolist() == [False, True]
        assert losses.isnan().tolist() == [False, True]
        assert given.isfinite().all(1).tolist() == [True, False]


def test_masked_rows_may_hold_anything() -> None:
    logits = torch.full((1, 5), torch.nan, device=DEVICE)
    word, mask = torch.zeros(1, dtype=torch.long, device=DEVICE), torch.zeros(1, device=DEVICE)
    losses, kept = softmax.cross_entropy(logits, word, mask.bool(), None, 0.1, -1.0, True)
    assert losses.tolist() == [0]
    assert kept.tolist() == [False]
    assert logits.tolist() == [[0] * 5]
