"""Runs that compute activations again: weights and log to the last bit as without."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oaxe.model.layers import EncoderLayer
from tests.runs import final_tensors, metrics, same, settings_of, train_on_ranks, train_small

STEPS = {"train__steps": 6, "validation__every": 3}


def test_a_run_goes_on_with_or_without(data: Path, tmp_path: Path) -> None:
    """And ends bit for bit as one that never recomputed."""
    train_small(settings_of(data, tmp_path / "never", **STEPS))
    run = tmp_path / "run"
    changes = STEPS | {"train__steps": 3, "train__recompute": True}
    with mock.patch("oaxe.model.transformer.checkpoint", wraps=checkpoint) as recomputed:
        train_small(settings_of(data, run, **changes))
        calls = recomputed.call_count
        assert calls >= 2 * 3  # two layers, three updates
        train_small(settings_of(data, run, **STEPS))
        assert recomputed.call_count == calls
    assert same(final_tensors(run), final_tensors(tmp_path / "never"))
    assert metrics(run) == metrics(tmp_path / "never")


def test_two_ranks(data: Path, tmp_path: Path) -> None:
    for name, recompute in (("with", True), ("without", False)):
        settings = settings_of(data, tmp_path / name, train__recompute=recompute, **STEPS)
        assert train_on_ranks(settings) == ["", ""]
    assert same(final_tensors(tmp_path / "with"), final_tensors(tmp_path / "without"))
    assert metrics(tmp_path / "with") == metrics(tmp_path / "without")


def test_a_signal_while_it_recomputes(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(data, tmp_path / "run", train__recompute=True, **STEPS)
    forward, calls = EncoderLayer.forward, itertools.count(1)

    def interrupted(self: EncoderLayer, *arguments: Any) -> Tensor:
        if next(calls) == 2:  # the first was the forward pass
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(EncoderLayer, "forward", interrupted)
        result, _ = train_small(settings)
    assert (result["stopped"], result["step"]) == ("interrupted", 0)
    train_small(settings)
    train_small(settings_of(data, tmp_path / "never", **STEPS))
    assert same(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "never"))
