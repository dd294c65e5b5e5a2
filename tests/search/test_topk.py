"""The few largest of very many, against a full sort; the logsumexp, in float64."""

import pytest
import torch

from oaxe.search.topk import CHUNK, largest, logsumexp


@pytest.mark.parametrize("size", [1, 7, CHUNK, 40 * CHUNK, 70 * CHUNK, 70 * CHUNK + 1, 9999])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_equals_a_full_sort(size: int, n: int) -> None:
    n = min(n, size)
    x = torch.randn(3, 2, size)
    x[0, 0, -n:] = torch.arange(n) + 100.0  # in what is left after the last whole chunk
    x[0, 1, :n] = torch.arange(n) + 100.0  # in the same chunk
    x[1, 0, n:] = float("-inf")
    values, where = largest(x, n)
    expected = x.sort(descending=True)
    assert torch.equal(values, expected.values[..., :n])
    assert torch.equal(where, expected.indices[..., :n])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_logsumexp(dtype: torch.dtype) -> None:
    x = (5 * torch.randn(3, 2, 700)).to(dtype)
    x[0, 0, 5:] = float("-inf")
    found = logsumexp(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), x.double().exp().sum(-1).log(), rtol=1e-5, atol=0)
