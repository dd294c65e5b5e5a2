"""Half precision on a CPU: products alone, and no longer than it is asked for."""

from typing import Any

import pytest
import torch

from oaxe.support.devices import half_precision

products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def test_numbers_stay_float32_and_products_are_near() -> None:
    x, weight = torch.randn(64, 96), torch.randn(32, 96, requires_grad=True)
    exact = x.double() @ weight.double().T
    with half_precision("cpu"):
        assert products.fp32_precision == "bf16"
        found = torch.nn.functional.linear(x, weight)
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert found.dtype == weight.grad.dtype == torch.float32
    # Each factor may be off by 2**-9 of it, as in bfloat16.
    bound = 2**-8 * (x.abs().double() @ weight.abs().double().T)
    assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_before_comes_back(fails: bool) -> None:
    before = products.fp32_precision
    try:
        with half_precision("cpu"), half_precision("cpu"):
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert products.fp32_precision == before
    with half_precision("cpu", enabled=False):
        assert products.fp32_precision == before
        assert not torch.is_autocast_enabled("cpu")
