"""Padded passes, which a GPU replays; here they are computed, tests/test_gpu.py replays them."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.decoding.one_pass import translate_batch
from oaxe.decoding.replay import Replay, ReplayedTransformer
from oaxe.model.transformer import SIZES, Transformer
from oaxe.text.symbols import EOS, PAD


@pytest.mark.parametrize("upsample", [0, 2])
@pytest.mark.parametrize("max_length", [12, 30])
def test_padding_changes_nothing(
    upsample: int, max_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []

    def compute(self: Replay, *inputs: Tensor) -> Any:
        shapes.append(inputs[0].shape)
        return self._function(*inputs)

    monkeypatch.setattr(Replay, "__call__", compute)
    model = Transformer(
        vocab_size=40, **SIZES["tiny"], max_length=max_length, causal=False, upsample=upsample
    )
    model = model.double().eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    replayed = ReplayedTransformer(model)
    for length in (1, 7, 8, max_length):
        source = torch.randint(9, 40, (2, length + 1))
        source[:, -1] = EOS
        source[1, length // 2 :] = PAD
        source[1, length // 2] = EOS
        found, expected = (translate_batch(m, source) for m in (replayed, model))
        for mine, theirs in zip(chain(*found), chain(*expected), strict=True):
            assert mine.tokens == theirs.tokens
            assert mine.score == pytest.approx(theirs.score, rel=1e-9)
    assert all(shape[1] % 8 == 0 or shape[1] >= max_length for shape in shapes)
