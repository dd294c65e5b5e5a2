"""Dropout, sum and normalisation in one kernel, against PyTorch in float64."""

import pytest
import torch
import torch.nn.functional as F

from oaxe.model.residual import _add_and_normalise

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DIM = 128


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
