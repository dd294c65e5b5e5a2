"""Attention within short sentences: the kernel against PyTorch's own attention."""

import pytest
import torch
from torch import Tensor

from oaxe.model.attention import _short_attention

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, DIM = 3, 16


def expected(query: Tensor, key_value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """By the definition, in float64."""
    scores = torch.einsum("bihd,bjhd->bhij", query, key_value[:, :, 0]) / query.shape[3] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    if causal:
        after = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(after, -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), key_value[:, :, 1])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("length", "keys", "causal"), [(1, 1, False), (5, 19, False), (33, 2, False), (17, 17, True)]
)
def test_kernel_is_attention(length: int, keys: int, causal: bool, masked: bool) -> None:
    torch.manual_seed(length)
    query = torch.randn(2, length, HEADS, DIM, dtype=torch.float64, requires_grad=True)
    key_value = torch.randn(2, keys, 2, HEADS, DIM, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(keys) < torch.tensor([[keys], [max(1, keys // 2)]]) if masked else None
    out = expected(query, key_value, mask, causal)
    gradient = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (query, key_value), gradient)
    given = [x.detach().float().to(DEVICE).requires_grad_() for x in (query, key_value)]
    seen = None if mask is None else mask.to(DEVICE)
    ours = _short_attention(*given, seen, causal)
    torch.testing.assert_close(ours.cpu().double(), out, atol=1e-5, rtol=1e-5)
    by_kernel = torch.autograd.grad(ours, given, gradient.float().to(DEVICE))
    for mine, theirs in zip(by_kernel, gradients, strict=True):
        torch.testing.assert_close(mine.cpu().double(), theirs, atol=1e-5, rtol=1e-5)


def test_a_place_that_sees_nothing_gets_nothing() -> None:
    query, key_value = torch.randn(1, 2, 1, DIM), torch.randn(1, 3, 2, 1, DIM)
    mask = torch.zeros(1, 3, dtype=torch.bool, device=DEVICE)
    ours = _short_attention(query.to(DEVICE), key_value.to(DEVICE), mask, False)
    assert torch.equal(ours.cpu(), torch.zeros_like(query))
