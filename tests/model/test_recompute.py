"""Activations that are computed again, not kept: the same gradients from a fraction of memory."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from oaxe.model.transformer import EncoderLayer, Transformer
from oaxe.search.beam import beam_search
from oaxe.text.symbols import PAD
from tests.model.test_model import GRID, micro, random_batch
from tests.runs import (
    final_tensors,
    make_data,
    metrics,
    same,
    settings_of,
    train_on_ranks,
    train_small,
)

STEPS = {"train__steps": 6, "validation__every": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("digits"))


def differentiate(
    model: Transformer, forward: Any, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], int]:
    """The output, its gradient by every parameter, and the bytes kept for the backward pass."""
    torch.manual_seed(2)
    source, inputs = random_batch(9, 3, 5), random_batch(4, 7, 2)
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.zero_grad()
    with (
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        hidden, length_logits = forward(source, inputs, inputs != PAD)
        loss = hidden.float().square().sum()
        if length_logits is not None:
            loss = loss + length_logits.float().square().sum()
    loss.backward()
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [hidden.detach(), *found], sum(kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_little_is_kept_and_nothing_changes(kind: str, norm: str, dtype: torch.dtype) -> None:
    model = micro(kind, norm, dropout=0.3).train()
    expected, all_kept = differentiate(model, model, dtype)
    model.recompute = True
    ours, kept = differentiate(model, model, dtype)
    assert len(ours) == len(expected) > 40
    assert all(map(torch.equal, ours, expected))
    assert kept < 0.3 * all_kept


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU: test_gpu_model.py")
def test_the_kernel_that_drops_draws_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    monkeypatch.setattr("oaxe.model.residual._is_fused", lambda x, update: True)
    model = micro(dim=128, dropout=0.3).train()
    expected, _ = differentiate(model, model, torch.bfloat16)
    model.recompute = True
    ours, _ = differentiate(model, model, torch.bfloat16)
    assert all(map(torch.equal, ours, expected))


@pytest.mark.parametrize("whole", [True, False])
def test_compiled(whole: bool) -> None:
    """The model in one graph, or layer by layer as the trainer does it."""
    model = micro(dropout=0.0).train()
    expected, _ = differentiate(model, model)
    torch.compiler.reset()
    backend = CompileCounterWithBackend("aot_eager")
    forward: Any = model
    if whole:
        forward = torch.compile(model, fullgraph=True, backend=backend)
    else:
        for layer in (*model.encoder, *model.decoder):
            layer.compile(dynamic=True, backend=backend)
    kept = []
    for model.recompute in (False, True, False):
        ours, its_bytes = differentiate(model, forward)
        torch.testing.assert_close(ours, expected)
        kept.append(its_bytes)
    assert backend.frame_count == (2 if whole else 4)  # with and without; or each layer once
    assert kept[1] < 0.3 * kept[0]
    assert kept[2] == kept[0]


@pytest.mark.parametrize("training", [True, False])
def test_only_where_training_differentiates(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oaxe.model.transformer.checkpoint", None)  # cannot be called
    model = micro("at").train(training)
    source, inputs = random_batch(5, 8), random_batch(6, 6)
    outputs, translations = [], []
    for model.recompute in (False, True):
        torch.manual_seed(2)
        with torch.set_grad_enabled(not training):
            outputs.append(model(source, inputs, inputs != PAD)[0])
        translations.append(beam_search(model.eval(), source, beam=2))
        model.train(training)
    assert torch.equal(*outputs)
    assert translations[0] == translations[1]
    assert not Transformer(**model.architecture).recompute


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
