"""The losses as modules: the same numbers as the functions, and weights that move along."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import oaxe

WEIGHT = torch.rand(9)
FORMS: list[tuple[type[torch.nn.Module], Callable[..., Any], dict[str, Any]]] = [
    (oaxe.XELoss, oaxe.xe_loss, {}),
    (oaxe.XELoss, oaxe.xe_loss, {"weight": WEIGHT, "label_smoothing": 0.1, "reduction": "none"}),
    (oaxe.OaXELoss, oaxe.oaxe_loss, {}),
    (oaxe.OaXELoss, oaxe.oaxe_loss, {"weight": WEIGHT, "truncation": 0.1, "ignore_index": 3}),
    (oaxe.OaXELoss, oaxe.oaxe_loss, {"label_smoothing": 0.1, "reduction": "sum"}),
    (oaxe.AXELoss, oaxe.axe_loss, {"blank": 8}),
    (oaxe.AXELoss, oaxe.axe_loss, {"blank": 8, "delta": 2.0, "ignore_index": 3}),
    (oaxe.BagOfNgramsLoss, oaxe.bag_of_ngrams_loss, {}),
    (oaxe.BagOfNgramsLoss, oaxe.bag_of_ngrams_loss, {"n": 3, "reduction": "sum"}),
    (oaxe.CTCLoss, oaxe.ctc_loss, {"blank": 8}),
    (oaxe.CTCLoss, oaxe.ctc_loss, {"blank": 8, "zero_infinity": False, "reduction": "none"}),
]


@pytest.mark.parametrize(("module", "function", "options"), FORMS)
def test_module_equals_function(
    module: type[torch.nn.Module], function: Callable[..., Any], options: dict[str, Any]
) -> None:
    logits, target = torch.randn(3, 6, 9), torch.randint(8, (3, 6))
    loss = module(**options)
    assert torch.equal(loss(logits, target), function(logits, target, **options))
    if function not in (oaxe.xe_loss, oaxe.oaxe_loss):
        mask = torch.rand(3, 6) < 0.8
        expected = function(logits, target, logit_mask=mask, **options)
        assert torch.equal(loss(logits, target, logit_mask=mask), expected)


def test_module_of_a_graph() -> None:
    logits, target = torch.randn(3, 6, 9), torch.randint(8, (3, 4))
    links = torch.randn(3, 6, 6).log_softmax(2)
    mask = torch.arange(6) < torch.tensor([[6], [5], [3]])
    for options in ({}, {"zero_infinity": True, "ignore_index": 3, "reduction": "none"}):
        loss: Any = oaxe.DAGLoss(**options)  # type: ignore[arg-type]
        plain: Callable[..., Any] = oaxe.dag_loss
        assert torch.equal(loss(logits, links, target), plain(logits, links, target, **options))
        expected = plain(logits, links, target, logit_mask=mask, **options)
        assert torch.equal(loss(logits, links, target, logit_mask=mask), expected)


def test_module_returns_the_order() -> None:
    logits, target = torch.randn(3, 6, 9), torch.randint(8, (3, 6))
    loss, order = oaxe.OaXELoss(truncation=0.1)(logits, target, return_order=True)
    assert torch.equal(loss, oaxe.oaxe_loss(logits, target, truncation=0.1))
    assert torch.equal(order.target, oaxe.best_order(logits, target))


@pytest.mark.parametrize("module", [oaxe.XELoss, oaxe.OaXELoss])
def test_class_weights_are_a_buffer(module: Callable[..., torch.nn.Module]) -> None:
    model = torch.nn.Sequential(module(weight=WEIGHT)).double()
    assert next(model.buffers()).dtype == torch.float64
    assert list(model.state_dict()) == ["0.weight"]
    assert not list(module().state_dict())


def test_options_are_shown() -> None:
    shown = repr(oaxe.OaXELoss(truncation=0.15))
    assert shown.startswith("OaXELoss(truncation=0.15, ignore_index=-100")
    assert "blank=8" in repr(oaxe.AXELoss(blank=8))
    assert "zero_infinity=True" in repr(oaxe.CTCLoss(blank=8))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="truncate"):
        oaxe.OaXELoss(truncate=0.1)  # type: ignore[call-arg]
