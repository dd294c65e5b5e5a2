"""The divergence of two predictions against torch's own, its gradient, and its memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses import linear_softmax
from oaxe.losses.divergence import _divergence, linear_divergence


def example() -> list[Tensor]:
    shapes = [(2, 5, 4), (2, 5, 4), (7, 4)]
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


def plain(given: list[Tensor], mask: Tensor) -> Tensor:
    hidden, other, weight = given
    p, q = (F.linear(x, weight).log_softmax(-1)[mask] for x in (hidden, other))
    options = {"log_target": True, "reduction": "sum"}
    return (F.kl_div(p, q, **options) + F.kl_div(q, p, **options)) / 2  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [None, 7, 9])
def test_equals_that_of_torch(capacity: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linear_softmax.CHUNK_BYTES, "cpu", 3 * 7 * 8)
    given = example()
    mask = torch.arange(5) < torch.tensor([[2], [5]])
    masks = [None, torch.ones(2, 5, dtype=torch.bool)] if capacity is None else [mask]
    for each in masks:
        ours = linear_divergence(*given, mask=each, capacity=capacity)
        theirs = plain(given, torch.ones(2, 5, dtype=torch.bool) if each is None else each)
        torch.testing.assert_close(ours, theirs)
        for one, other in zip(
            torch.autograd.grad(ours, given), torch.autograd.grad(theirs, given), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_too_many_positions_are_noticed() -> None:
    given = example()
    mask = torch.ones(2, 5, dtype=torch.bool)
    assert linear_divergence(*given, mask=mask, capacity=9).isnan()


def test_of_the_same_predictions_it_is_zero() -> None:
    hidden, _, embedding = example()
    loss = linear_divergence(hidden, hidden, embedding)
    assert loss == 0
    assert all(not g.any() for g in torch.autograd.grad(loss, [hidden, embedding]))


def test_rejects_other_positions() -> None:
    hidden, other, embedding = example()
    with pytest.raises(ValueError, match=r"input of shape \(2, 5, 4\) and other of shape"):
        linear_divergence(hidden, other[:, :4], embedding)


def test_the_operator_is_registered_correctly() -> None:
    hidden, other, weight = example()
    torch.library.opcheck(_divergence, (hidden.flatten(0, 1), other.flatten(0, 1), weight))
