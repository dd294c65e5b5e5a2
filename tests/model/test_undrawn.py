"""Weights are left as they are, so that nothing is drawn for a model that is loaded."""

import torch
from torch import nn

from oaxe.model.undrawn import without_drawing
from oaxe.systems import build
from tests.models import micro


def test_initialisation_leaves_weights_as_they_are() -> None:
    weight = torch.ones(2, 3)
    with without_drawing():
        for found in (
            nn.init.normal_(weight, std=0.5),
            nn.init.uniform_(tensor=weight),
            nn.init.kaiming_uniform_(weight, a=2.0),
        ):
            assert found is weight
    assert weight.eq(1).all()
    nn.init.normal_(weight)
    assert not weight.eq(1).any()


def test_a_model_without_drawing_has_all_its_parameters_and_computes() -> None:
    drawn = micro("dag")
    before = torch.get_rng_state()
    with torch.device("meta"), without_drawing():
        empty = build("dag", drawn.architecture, drawn.options)
    assert torch.get_rng_state().equal(before)
    empty.load_state_dict(drawn.state_dict(), assign=True)
    source = torch.tensor([[9, 8, 2]])
    decoding = drawn.decoding_type()
    assert empty.eval().translate(source, decoding) == drawn.translate(source, decoding)
