"""Layers over packed sentences compute what they compute over padded ones."""

from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.model import flat, residual, span_attention
from oaxe.model.flat import decode_flat, encode_flat
from oaxe.model.spans import Spans, spans_between
from oaxe.model.transformer import Encoded, Norm, Size, Transformer
from tests.models import MICRO, VOCAB, micro_transformer, with_noise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SOURCE, TARGET = torch.tensor([5, 1, 9, 2]), torch.tensor([3, 8, 1, 4])
PADDING = 3  # tokens at the end


def pack(x: Tensor, mask: Tensor) -> Tensor:
    """``(batch, length, dim)`` to ``(tokens, dim)``, with noise as padding."""
    return torch.cat([x[mask], torch.randn(PADDING, x.shape[2], dtype=x.dtype)])


def masks() -> list[Tensor]:
    return [torch.arange(int(n.max())) < n.unsqueeze(1) for n in (SOURCE, TARGET)]


def spans(causal: bool) -> tuple[Spans, Spans, Spans]:
    """Of the encoder, of the decoder and between them."""
    n, m = int(SOURCE.sum()) + PADDING, int(TARGET.sum()) + PADDING
    return (
        spans_between(SOURCE, SOURCE, n, n),
        spans_between(TARGET, TARGET, m, m, causal),
        spans_between(TARGET, SOURCE, m, n),
    )


def through_padded(model: Transformer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states of the real tokens, by the layers' own forward."""
    mask, target_mask = masks()
    for layer in model.encoder:
        x = layer(x, mask)
    encoded = Encoded(model.encoder_norm(x), mask)
    for layer in model.decoder:
        y = layer(y, None if model.causal else target_mask, encoded, model.causal)
    return encoded.hidden[mask], model.decoder_norm(y)[target_mask]


def through_flat(
    model: Transformer, x: Tensor, y: Tensor, recompute: bool = False
) -> tuple[Tensor, Tensor]:
    mask, target_mask = masks()
    own, target_own, cross = (
        Spans(*(ends.to(x.device) for ends in each)) for each in spans(model.causal)
    )
    hidden = encode_flat(model.encoder, x, own, model.encoder_norm, recompute)
    out = decode_flat(model.decoder, y, target_own, hidden, cross, model.decoder_norm, recompute)
    return hidden[: mask.sum()], out[: target_mask.sum()]


def layer_parameters(model: Transformer) -> dict[str, Tensor]:
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.startswith(("encoder", "decoder"))
    }


def embedded(dim: int) -> list[Tensor]:
    return [torch.randn(*mask.shape, dim, dtype=torch.float64) for mask in masks()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_flat_is_padded(norm: Norm, causal: bool, recompute: bool) -> None:
    model = micro_transformer(norm, causal=causal).double()
    x, y = embedded(MICRO["dim"])
    expected = through_padded(model, x.requires_grad_(), y.requires_grad_())
    mask, target_mask = masks()
    found = through_flat(model, pack(x, mask), pack(y, target_mask), recompute)
    gradients = [torch.randn_like(out) for out in expected]
    parameters = layer_parameters(model)
    results = []
    for outs in (expected, found):
        given = torch.autograd.grad(outs, [x, y, *parameters.values()], gradients)
        results.append(dict(zip(["x", "y", *parameters], given, strict=True)))
        results[-1] |= {"source": outs[0], "target": outs[1]}
    torch.testing.assert_close(results[1], results[0])


def big_enough(norm: Norm, **arguments: Any) -> Transformer:
    """For the kernels of sums, which have their dims."""
    sizes = Size(dim=128, ffn=64, heads=2, encoder_layers=1, decoder_layers=2)
    return with_noise(
        Transformer(vocab_size=VOCAB, **sizes, max_length=12, causal=False, norm=norm, **arguments)
    )


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter where there is no GPU."""
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    from oaxe.model.kernels import residual as residual_kernel

    monkeypatch.setattr(residual_kernel, "NUMBERS", 2048)  # few programs: the interpreter is slow
    for module in (span_attention, residual, flat):
        monkeypatch.setattr(module, "is_fast", lambda dtype, device: dtype == torch.float32)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_kernels_are_flat_layers(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, as near to float64 as roundings allow: the plain way's error here, and 1e-5."""
    model = big_enough(norm).eval()
    mask, target_mask = masks()
    x, y = embedded(128)
    given = [pack(x, mask), pack(y, target_mask)]

    def both_ways(dtype: torch.dtype, device: str) -> list[Tensor]:
        model.to(device, dtype)
        inputs = [t.detach().to(device, dtype).requires_grad_() for t in given]
        outs = through_flat(model, inputs[0], inputs[1])
        leaves = [*inputs, *layer_parameters(model).values()]
        gradients = [t[: len(out)].sin().to(out) for t, out in zip(given, outs, strict=True)]
        return [*outs, *torch.autograd.grad(outs, leaves, gradients)]

    right = both_ways(torch.float64, "cpu")
    found = both_ways(torch.float32, DEVICE)
    for module in (span_attention, residual, flat):
        monkeypatch.setattr(module, "is_fast", lambda dtype, device: False)
    plain = both_ways(torch.float32, DEVICE)
    for mine, other, theirs in zip(found, plain, right, strict=True):
        allowed = 1e-5 * theirs.norm() + (other.cpu() - theirs).norm()
        assert (mine.cpu() - theirs).norm() <= allowed


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_is_the_same_when_computed_again(norm: Norm) -> None:
    """And another with another seed."""
    model = big_enough(norm, dropout=0.3).to(DEVICE).train()
    x = pack(embedded(128)[0].float(), masks()[0]).to(DEVICE)
    own = Spans(*(ends.to(DEVICE) for ends in spans(causal=False)[0]))
    leaves = list(model.encoder.parameters())
    found = []
    for seed, recompute in ((1, False), (1, True), (2, False)):
        torch.manual_seed(seed)
        out = encode_flat(model.encoder, x, own, model.encoder_norm, recompute)
        found.append([out, *torch.autograd.grad(out, leaves, out.sin())])
    torch.testing.assert_close(found[0], found[1])
    assert not torch.allclose(found[0][0], found[2][0], atol=0.1)
