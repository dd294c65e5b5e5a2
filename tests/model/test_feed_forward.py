"""A linear layer and GELU in one operator, against PyTorch in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from oaxe.model import feed_forward
from oaxe.model.feed_forward import _linear_gelu, linear_gelu

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from oaxe.model.kernels import gelu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_kernel_is_gelu_everywhere() -> None:
    """Also far out, where the distribution is nearly 0 or 1; and at infinity, as PyTorch's."""
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e18, 1e18, torch.inf])])
    exact = x.double().requires_grad_()
    expected = F.gelu(exact)
    (slope,) = torch.autograd.grad(expected.sum(), exact)
    rows = x.to(DEVICE).unsqueeze(0)
    torch.testing.assert_close(gelu.forward(rows).cpu()[0].double(), expected, atol=1e-6, rtol=1e-6)
    of_x, sums = gelu.backward(torch.ones_like(rows), rows)
    finite = x.abs() < 100
    torch.testing.assert_close(of_x.cpu()[0][finite].double(), slope[finite], atol=1e-6, rtol=0)
    torch.testing.assert_close(sums, of_x[0], equal_nan=True)


@pytest.mark.parametrize("rows", [1, 37])
def test_operator_is_linear_then_gelu(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gelu, "PROGRAMS", 4)  # so that each adds up several rows
    dim, ffn = 24, 700  # not a whole number of blocks
    x, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((rows, dim), (ffn, dim), (ffn,))
    )
    expected = F.gelu(F.linear(x, weight, bias))
    gradient = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (x, weight, bias), gradient)
    given = [t.detach().float().to(DEVICE).requires_grad_() for t in (x, weight, bias)]
    out = _linear_gelu(*given)[0]
    torch.testing.assert_close(out.cpu().double(), expected, atol=1e-4, rtol=1e-4)
    found = torch.autograd.grad(out, given, gradient.float().to(DEVICE))
    for ours, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, atol=1e-3, rtol=1e-3)


def test_one_graph_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_forward, "pays", lambda x: True)
    counter = CompileCounter()
    compiled = torch.compile(linear_gelu, backend=counter, dynamic=True)
    weight, bias = torch.randn(16, 8, device=DEVICE), torch.randn(16, device=DEVICE)
    for length in (3, 5, 9):
        x = torch.randn(2, length, 8, device=DEVICE)
        torch.testing.assert_close(
            compiled(x, weight, bias), F.gelu(F.linear(x, weight, bias)), atol=1e-4, rtol=1e-4
        )
    assert counter.frame_count == 1
