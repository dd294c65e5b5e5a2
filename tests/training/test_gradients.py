"""Gradients of a system whose parameters are frozen, unused or tied."""

import pytest
import torch
from torch import nn

from oaxe.systems import Progress, System, build, cmlm
from oaxe.training.gradients import Gradients, converted
from tests.systems.test_packed import SIZE, batch

ZERO, ONE = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
NOW = Progress(ZERO, ONE, "loss")


def new() -> System:
    torch.manual_seed(0)
    architecture = {"vocab_size": 40, **SIZE, "max_length": 20, "dropout": 0.0}
    return build("cmlm", architecture, cmlm.Options())


@pytest.mark.parametrize("batches", [1, 3])
def test_sums_equal_those_of_backward(batches: int) -> None:
    system = new()
    system.transformer.target_positions.weight.requires_grad_(False)
    torch.manual_seed(1)
    examples = [system.example(*batch(4)) for _ in range(batches)]
    scale = torch.tensor(0.25)
    gradients = Gradients(system, half=False, copies=True)
    for number, example in enumerate(examples):
        gradients.compute(example, NOW, scale, first=number == 0)
    found = {name: p.grad for name, p in system.named_parameters()}
    assert found["transformer.target_positions.weight"] is None

    other = new()
    other.transformer.target_positions.weight.requires_grad_(False)
    for example in examples:
        (other(example, NOW)[0] * scale).backward()
    for name, parameter in other.named_parameters():
        assert (found[name] is None) == (parameter.grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad)


def test_a_tied_weight_is_converted_once() -> None:
    system = new()
    first, second = system.transformer.encoder[0], system.transformer.encoder[1]
    second.feed_forward.sublayer.inner.weight = first.feed_forward.sublayer.inner.weight  # type: ignore[union-attr]
    names = [
        name
        for name, parameter in system.named_parameters()
        if any(parameter is other for other in converted(system))
    ]
    assert "transformer.encoder.0.feed_forward.sublayer.inner.weight" in names
    assert "transformer.encoder.1.feed_forward.sublayer.inner.weight" not in names
    norms = [m for m in system.modules() if isinstance(m, nn.LayerNorm)]
    assert not any(p is q for m in norms for p in m.parameters() for q in converted(system))
