"""Dropout on a CPU: what is dropped, how often, and its gradient."""

import pytest
import torch
import torch.nn.functional as F

from oaxe.model.dropout import DropoutLayer, dropped


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
def test_share_and_scale(probability: float) -> None:
    torch.manual_seed(1)
    x = torch.randn(401, 997).abs() + 1  # of numbers that four do not divide
    out = dropped(x, probability)
    kept = out != 0
    assert (1 - kept.double().mean()).item() == pytest.approx(probability, abs=0.005)
    torch.testing.assert_close(out[kept], x[kept] / (1 - probability))
    # Each of the four that share a draw has the same chance, whatever the others have.
    four = (~kept).flatten()[: 4 * (kept.numel() // 4)].view(-1, 4).double()
    torch.testing.assert_close(
        four.mean(0), torch.full_like(four[0], probability), atol=0.01, rtol=0
    )
    both = four.T @ four / len(four)
    both.fill_diagonal_(probability**2)
    assert (both - probability**2).abs().max() < 0.01


def test_gradient_is_what_was_kept() -> None:
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(2)
    factor = dropped(torch.ones_like(x), 0.3).detach()
    torch.manual_seed(2)
    out = dropped(x, 0.3)
    torch.testing.assert_close(out, x * factor)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, factor)


def test_a_seed_repeats_it_and_another_does_not() -> None:
    x = torch.ones(64, 64)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(dropped(x, 0.5))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (2, 3, 5)])
def test_shapes_and_dtypes(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        out = dropped(torch.ones(shape, dtype=dtype), 0.2)
        assert (out.shape, out.dtype) == (shape, dtype)


def test_the_layer_drops_in_training_only() -> None:
    x, layer = torch.randn(50, 50), DropoutLayer(0.4)
    assert (layer(x) == 0).any()
    assert layer.eval()(x) is x
    assert torch.equal(DropoutLayer(0.0)(x), F.dropout(x, 0.0))
