"""Dropout, sum and normalisation in one kernel, against PyTorch in float64."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.model import residual
from oaxe.model.residual import Dropout, _add_and_normalise, sum_and_normalise

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from oaxe.model.kernels import residual as kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM = 128


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes as long for a program of many rows as for one of few."""
    monkeypatch.setattr(kernel, "NUMBERS", 2048)


def test_kernel_is_layer_norm_of_the_sum() -> None:
    x, update = (torch.randn(3, 23, DIM, dtype=torch.float64, requires_grad=True) for _ in "xu")
    weight, bias = (torch.randn(DIM, dtype=torch.float64, requires_grad=True) for _ in "wb")
    expected = F.layer_norm(x + update, (DIM,), weight, bias, 1e-5)
    gradient = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (x, update, weight, bias), gradient)
    given = [t.detach().float().to(DEVICE).requires_grad_() for t in (x, update, weight, bias)]
    seed = torch.zeros((), dtype=torch.int64, device=DEVICE)
    out = _add_and_normalise(*given, seed, 1e-5, 0.0)[0]
    torch.testing.assert_close(out.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    found = torch.autograd.grad(out, given, gradient.float().to(DEVICE))
    for ours, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, atol=1e-4, rtol=1e-4)


def test_what_is_dropped_depends_on_the_seed_and_has_no_gradient() -> None:
    """The output tells what was dropped; the kernel backward must have dropped the same."""
    drop, shape = 0.25, (8, 50, DIM)
    x, update = torch.zeros(shape), torch.randn(shape) + 5
    masks = []
    for seed in (1, 2, 1 + 2**33):
        given = [t.to(DEVICE).requires_grad_() for t in (x, update)]
        number = torch.tensor(seed, device=DEVICE)
        norm = torch.ones(DIM, device=DEVICE), torch.zeros(DIM, device=DEVICE)
        out, total, _, _ = _add_and_normalise(*given, *norm, number, 1e-5, drop)
        kept = total.cpu() != 0
        torch.testing.assert_close(total.cpu()[kept], update[kept] / (1 - drop))
        again = F.layer_norm(torch.where(kept, update / (1 - drop), 0), (DIM,))
        torch.testing.assert_close(out.cpu(), again, atol=1e-5, rtol=1e-5)
        of_x, of_update = torch.autograd.grad(out.square().sum() + out.sum(), given)
        torch.testing.assert_close(of_update, torch.where(kept.to(DEVICE), of_x / (1 - drop), 0))
        masks.append(kept)
    n = masks[0].numel()
    for kept in masks:
        assert abs(float(kept.float().mean()) - (1 - drop)) < 5 * (drop * (1 - drop) / n) ** 0.5
    flat = [kept.flatten() for kept in masks]
    for one, other in ((0, 1), (0, 2), (1, 2)):  # as often equal as if they were independent
        for shift in range(50):  # nor is one the other, moved
            equal = float((flat[one] == flat[other].roll(shift)).float().mean())
            assert abs(equal - (drop**2 + (1 - drop) ** 2)) < 0.01
    by_column = masks[0].float().mean((0, 1))
    assert float((by_column - (1 - drop)).abs().max()) < 5 * (drop * (1 - drop) / 400) ** 0.5


def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual, "is_fast", lambda dtype, device: dtype == torch.float32)


@pytest.mark.parametrize("updated", [True, False])
@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)])
def test_sum_kernel_adds_up_all_gradients(
    used: tuple[int, ...], updated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the three results, any may be used; those that are not have no gradient."""
    with_kernels(monkeypatch)
    monkeypatch.setattr(kernel, "PROGRAMS", 3)  # so that each adds up several rows
    shapes = (23, DIM), (DIM,), (DIM,), (23, DIM), (DIM,)
    given = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    gradients = [torch.randn(23, DIM, dtype=torch.float64) for _ in range(3)]

    def both_ways(values: list[Tensor]) -> list[Tensor]:
        x, weight, bias, *update = (v.requires_grad_() for v in values[: 5 if updated else 3])
        norm = nn.LayerNorm(DIM).to(x)
        norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(bias)
        new, new_bias = update or (None, None)
        outs = sum_and_normalise(x, new, new_bias, norm, Dropout(None, 0, 0.0), x.dtype)
        leaves = [x, norm.weight, norm.bias, *update]
        chosen = [outs[i] for i in used], [gradients[i].to(x) for i in used]
        found = torch.autograd.grad(*chosen[:1], leaves, chosen[1], allow_unused=True)
        return [*outs, *(torch.zeros(1) if g is None else g for g in found)]

    right = both_ways(given)
    ours = both_ways([x.detach().float().to(DEVICE) for x in given])
    for mine, theirs in zip(ours, right, strict=True):
        found = mine.cpu().double()
        torch.testing.assert_close(found, theirs.double().expand_as(found), atol=1e-4, rtol=1e-4)


def test_sum_in_the_precision_of_x(monkeypatch: pytest.MonkeyPatch) -> None:
    """A precise sum goes on precise, through layers that are not."""
    monkeypatch.setattr(residual, "is_fast", lambda dtype, device: True)
    x, bias = torch.randn(5, DIM, device=DEVICE), torch.randn(DIM, device=DEVICE).bfloat16()
    update = torch.randn(5, DIM, device=DEVICE).bfloat16()
    norm = nn.LayerNorm(DIM, device=DEVICE)
    leaves = [x.requires_grad_(), update.requires_grad_(), bias.requires_grad_(), norm.weight]
    outs = sum_and_normalise(x, update, bias, norm, Dropout(None, 0, 0.0), torch.bfloat16)
    assert [out.dtype for out in outs] == [torch.bfloat16, torch.bfloat16, torch.float32]
    torch.testing.assert_close(outs[2], x + (update.float() + bias.float()))
    found = torch.autograd.grad(outs[0].float().sum() + outs[2].sum(), leaves)
    assert [g.dtype for g in found] == [leaf.dtype for leaf in leaves]


def test_sums_that_share_a_seed_drop_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    """What each drops, its gradient does not reach; the bias is dropped with the update."""
    with_kernels(monkeypatch)
    drop, rows = 0.25, 60
    norm = nn.LayerNorm(DIM, device=DEVICE)
    seed = torch.tensor(2**61 + 5, device=DEVICE)
    masks = []
    for number in (0, 1, 2, 17):
        x = torch.zeros(rows, DIM, device=DEVICE, requires_grad=True)
        update = (torch.randn(rows, DIM, device=DEVICE) + 5).requires_grad_()
        bias = torch.randn(DIM, device=DEVICE, requires_grad=True)
        given = x, update, bias, norm, Dropout(seed, number, drop), torch.float32
        normal, again, total = sum_and_normalise(*given)
        kept = total != 0
        expected = torch.where(kept, (update + bias) / (1 - drop), 0)
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(normal, norm(expected), atol=1e-5, rtol=1e-5)
        loss, right = (
            (a.square() * torch.arange(DIM, device=DEVICE)).sum() + (b * x.cos()).sum() + c.sum()
            for a, b, c in ((normal, again, total), (norm(expected),) * 2 + (expected,))
        )
        leaves = update, bias, norm.weight, norm.bias
        for ours, theirs in zip(
            torch.autograd.grad(loss, leaves), torch.autograd.grad(right, leaves), strict=True
        ):
            assert (ours - theirs).norm() <= 1e-4 * theirs.norm()
        masks.append(kept.flatten())
    n = masks[0].numel()
    for kept in masks:
        assert abs(float(kept.float().mean()) - (1 - drop)) < 5 * (drop * (1 - drop) / n) ** 0.5
    for one, other in pairwise(masks):
        equal = float((one == other).float().mean())
        assert abs(equal - (drop**2 + (1 - drop) ** 2)) < 0.02
