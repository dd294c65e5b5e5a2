"""Activations that are computed again, not kept: the same gradients from a fraction of memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from oaxe.model.transformer import Transformer
from oaxe.search.beam import beam_search
from tests.model.test_transformer import GRID, KINDS
from tests.models import hidden_states, micro_transformer, random_batch

ONE_LAYER: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 1,
}  # to compile or interpret less


def differentiate(
    model: Transformer,
    dtype: torch.dtype = torch.float32,
    forward: Callable[..., Tensor] = hidden_states,
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
        hidden = forward(model, source, inputs)
        loss = hidden.float().square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [hidden.detach(), *found], sum(kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_little_is_kept_and_nothing_changes(kind: str, norm: str, dtype: torch.dtype) -> None:
    model = micro_transformer(norm, **KINDS[kind], dropout=0.3).train()
    expected, all_kept = differentiate(model, dtype)
    model.recompute = True
    ours, kept = differentiate(model, dtype)
    assert len(ours) == len(expected) > 40
    assert all(map(torch.equal, ours, expected))
    assert kept < 0.3 * all_kept


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU: test_gpu_model.py")
def test_the_kernel_that_drops_draws_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    monkeypatch.setattr("oaxe.model.residual.pays", lambda x: True)
    model = micro_transformer(**ONE_LAYER, dim=128, dropout=0.3).train()
    expected, _ = differentiate(model, torch.bfloat16)
    model.recompute = True
    ours, _ = differentiate(model, torch.bfloat16)
    assert all(map(torch.equal, ours, expected))


@pytest.mark.parametrize("whole", [True, False])
def test_compiled(whole: bool) -> None:
    """The model in one graph, or layer by layer as the trainer does it."""
    layers = ONE_LAYER if whole else {}
    model = micro_transformer(**layers, dropout=0.0).train()
    expected, _ = differentiate(model)
    torch.compiler.reset()
    backend = CompileCounterWithBackend("aot_eager")
    forward: Any = hidden_states
    if whole:
        forward = torch.compile(hidden_states, fullgraph=True, backend=backend)
    else:
        for layer in (*model.encoder, *model.decoder):
            layer.compile(dynamic=True, backend=backend)
    kept = []
    for model.recompute in (False, True, False):
        ours, its_bytes = differentiate(model, forward=forward)
        torch.testing.assert_close(ours, expected)
        kept.append(its_bytes)
    assert backend.frame_count == (2 if whole else 4)  # with and without; for each kind of layer
    assert kept[1] < 0.3 * kept[0]
    assert kept[2] == kept[0]


@pytest.mark.parametrize("training", [True, False])
def test_only_where_training_differentiates(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oaxe.model.transformer.checkpoint", None)  # cannot be called
    model = micro_transformer(causal=True).train(training)
    source, inputs = random_batch(5, 8), random_batch(6, 6)
    outputs, translations = [], []
    for model.recompute in (False, True):
        torch.manual_seed(2)
        with torch.set_grad_enabled(not training):
            outputs.append(hidden_states(model, source, inputs))
        translations.append(beam_search(model.eval(), source, beam=2))
        model.train(training)
    assert torch.equal(*outputs)
    assert translations[0] == translations[1]
    assert not micro_transformer().recompute
