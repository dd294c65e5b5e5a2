"""Half precision on a CPU: products alone, and no longer than it is asked for."""

import pytest
import torch

from oaxe.support.devices import half_precision


def test_numbers_stay_float32_and_products_are_near() -> None:
    x, weight = torch.randn(64, 96), torch.randn(32, 96, requires_grad=True)
    exact = x.double() @ weight.double().T
    with half_precision("cpu"):
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        found = torch.nn.functional.linear(x, weight)
        found.sum().backward()
    assert found.dtype == weight.grad.dtype == torch.float32
    # Each factor may be off by 2**-9 of it, as in bfloat16.
    bound = 2**-8 * (x.abs().double() @ weight.abs().double().T)
    assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_before_comes_back(fails: bool) -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        with half_precision("cpu"), half_precision("cpu"):
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    with half_precision("cpu", enabled=False):
        assert torch.backends.mkldnn.matmul.fp32_precision == before
        assert not torch.is_autocast_enabled("cpu")
