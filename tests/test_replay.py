"""Padded passes, which a GPU replays; here they are computed, tests/test_gpu.py replays them."""

from itertools import chain

import pytest
import torch
from torch import Tensor

from oaxe.decoding.one_pass import translate_batch
from oaxe.decoding.replay import Replays, Tensors
from oaxe.model.transformer import SIZES, Transformer
from oaxe.text.symbols import EOS, PAD


class Computed(Replays):
    """Notes the shapes and computes."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.lengths: list[int] = []

    def __call__(self, function, *inputs: Tensor, **options: bool | int) -> Tensors:  # type: ignore[no-untyped-def]
        self.lengths.append(inputs[0].shape[1])
        out: Tensors = function(self.model, *inputs, **options)
        return out


@pytest.mark.parametrize("upsample", [0, 2])
@pytest.mark.parametrize("max_length", [12, 40])
@pytest.mark.parametrize("refine_steps", [1, 3])
def test_padding_changes_nothing(upsample: int, max_length: int, refine_steps: int) -> None:
    if upsample and refine_steps > 1:
        pytest.skip("CTC has one pass")
    model = Transformer(
        vocab_size=40, **SIZES["tiny"], max_length=max_length, causal=False, upsample=upsample
    )
    model = model.double().eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    computed = Computed(model)
    for length in (1, 7, 8, 20, max_length):
        length = min(length, max_length)
        source = torch.randint(9, 40, (2, length + 1))
        source[:, -1] = EOS
        source[1, length // 2 :] = PAD
        source[1, length // 2] = EOS
        expected = translate_batch(model, source, refine_steps=refine_steps)
        found = translate_batch(model, source, refine_steps=refine_steps, replays=computed)
        for mine, theirs in zip(chain(*found), chain(*expected), strict=True):
            assert mine.tokens == theirs.tokens
            assert mine.length == theirs.length
            assert mine.score == pytest.approx(theirs.score, rel=1e-5)
    few = {16, 32, max_length + 1, max_length + 2, 2 * 16, 2 * 32, 2 * (max_length + 1)}
    assert set(computed.lengths) <= few
