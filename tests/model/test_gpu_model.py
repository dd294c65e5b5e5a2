"""The model's kernels on a CUDA device, alone and in training: ``pytest -m gpu``."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.model import attention as attention_module
from oaxe.model.attention import attention
from oaxe.model.feed_forward import linear_gelu
from oaxe.model.flat import decode_flat, encode_flat
from oaxe.model.graphs import Recorder
from oaxe.model.residual import add_and_normalise
from oaxe.model.span_attention import cross_attention, self_attention
from oaxe.model.spans import spans_between
from oaxe.model.transformer import SIZES, Norm, Transformer, initialise
from oaxe.text.symbols import MASK, PAD
from tests.gpu import GPU

pytestmark = GPU


@pytest.mark.parametrize("length", [2, 27, 128])
def test_attention_no_further_off_than_plain(length: int) -> None:
    torch.manual_seed(0)
    query = torch.randn(20, length, 8, 64, device="cuda", dtype=torch.float64, requires_grad=True)
    key_value = torch.randn(20, length, 2, 8, 64, device="cuda", dtype=torch.float64)
    key_value.requires_grad_()
    mask = torch.rand(20, length, device="cuda") < 0.8
    mask[:, 0] = True
    gradient = torch.randn_like(query)
    errors = []
    keys, values = (x.transpose(1, 2) for x in key_value.unbind(2))
    exact = F.scaled_dot_product_attention(
        query.transpose(1, 2), keys, values, mask[:, None, None, :]
    ).transpose(1, 2)
    right = [exact, *torch.autograd.grad(exact, (query, key_value), gradient)]
    for short in (True, False):
        half = [x.detach().bfloat16().requires_grad_() for x in (query, key_value)]
        if short:
            out = attention(half[0], half[1], mask, causal=False)
        else:
            keys, values = (x.transpose(1, 2) for x in half[1].unbind(2))
            out = F.scaled_dot_product_attention(
                half[0].transpose(1, 2), keys, values, mask[:, None, None, :]
            ).transpose(1, 2)
        found = [out, *torch.autograd.grad(out, half, gradient.bfloat16())]
        errors.append([float((a - b).norm() / b.norm()) for a, b in zip(found, right, strict=True)])
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.1 * theirs + 1e-4


def test_residual_no_further_off_than_plain() -> None:
    torch.manual_seed(0)
    given = [torch.randn(64, 40, 512, device="cuda", dtype=torch.float64) for _ in range(2)]
    given += [torch.randn(512, device="cuda", dtype=torch.float64) for _ in range(2)]
    gradient = torch.randn_like(given[0])

    def both_ways(values: list[Tensor], fused: bool) -> list[Tensor]:
        values = [value.detach().requires_grad_() for value in values]
        x, update, weight, bias = values
        with torch.autocast("cuda", torch.bfloat16, enabled=x.dtype == torch.bfloat16):
            if fused:
                out = add_and_normalise(x, update, weight, bias, 1e-5, drop=0.0)
            else:
                out = F.layer_norm(x + update, (512,), weight, bias, 1e-5).to(x.dtype)
        return [out, *torch.autograd.grad(out, values, gradient.to(out.dtype))]

    right = both_ways(given, fused=False)
    half = [x.bfloat16() for x in given[:2]] + [x.float() for x in given[2:]]
    for ours, plain, exact in zip(
        both_ways(half, fused=True), both_ways(half, fused=False), right, strict=True
    ):
        errors = [float((x - exact).norm() / exact.norm()) for x in (ours, plain)]
        assert errors[0] <= 1.1 * errors[1] + 1e-4


def test_feed_forward_no_further_off_than_plain() -> None:
    torch.manual_seed(0)
    shapes = (64, 40, 512), (2048, 512), (2048,)
    given = [torch.randn(*s, device="cuda", dtype=torch.float64) / s[-1] ** 0.25 for s in shapes]
    gradient = torch.randn(64, 40, 2048, device="cuda", dtype=torch.float64)

    def both_ways(values: list[Tensor], fused: bool) -> list[Tensor]:
        values = [value.detach().requires_grad_() for value in values]
        with torch.autocast("cuda", torch.bfloat16, enabled=values[0].dtype == torch.bfloat16):
            out = linear_gelu(*values) if fused else F.gelu(F.linear(*values))
        return [out, *torch.autograd.grad(out, values, gradient.to(out.dtype))]

    half = [given[0].bfloat16(), given[1].float(), given[2].float()]
    for ours, plain, exact in zip(
        both_ways(half, True), both_ways(half, False), both_ways(given, False), strict=True
    ):
        errors = [float((x - exact).norm() / exact.norm()) for x in (ours, plain)]
        assert errors[0] <= 1.1 * errors[1] + 1e-4


LOSSES: dict[str, tuple[Any, Any]] = {
    "xe": (oaxe.xe_loss, oaxe.linear_xe_loss),
    "oaxe": (oaxe.oaxe_loss, oaxe.linear_oaxe_loss),
}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_no_further_off_than_plain(
    loss: str, norm: Norm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch by batch from the same weights, as they are learned: bfloat16 against float32."""
    monkeypatch.setattr(attention_module, "LARGE", 0)
    torch.manual_seed(0)
    model = Transformer(
        vocab_size=60, **SIZES["tiny"], max_length=20, causal=False, dropout=0.0, norm=norm
    )
    initialise(model)
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plain, linear = LOSSES[loss]

    def differentiate(source: Tensor, fast: bool, half: bool) -> tuple[float, Tensor]:
        monkeypatch.setattr(attention_module, "KERNELS", fast)
        masks = torch.full_like(source, MASK)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            hidden = model.decode(masks, masks != PAD, model.encode(source))
            if fast:
                value = linear(hidden, model.output_weight, source)
            else:
                value = plain(model.logits(hidden), source)
        optimizer.zero_grad()
        value.backward()
        return value.item(), torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]

    values, errors = [], []
    for update in range(120):
        source = torch.randint(7, 60, (256, 10), device="cuda")
        if update % 10 == 0:
            runs = (differentiate(source, fast, half=True) for fast in (True, False))
            (ours, our_gradient), (theirs, their_gradient) = runs
            exact, gradient = differentiate(source, fast=False, half=False)
            assert abs(ours - exact) <= abs(theirs - exact) + 0.01 * exact + 2e-3
            errors.append([float((g - gradient).norm() / gradient.norm())
                           for g in (our_gradient, their_gradient)])  # fmt: skip
        values.append(differentiate(source, fast=True, half=True)[0])
        optimizer.step()
    oaxe.check_costs()
    assert sum(values[-10:]) < 0.7 * sum(values[:10])  # it learns
    # A rounding may choose another order of the words: one batch says little, their mean more.
    ours, theirs = (sum(column) / len(errors) for column in zip(*errors, strict=True))
    assert ours <= 1.2 * theirs + 1e-3, errors


def packed_lengths(tokens: int) -> Tensor:
    """Of sentences that fill nearly all of them, some long."""
    lengths = (torch.randn(tokens, device="cuda") * 0.7 + 3).exp().clamp(1, 300).long()
    return lengths[lengths.cumsum(0) <= tokens - 10]


@pytest.mark.parametrize("kind", ["own", "causal", "cross"])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_span_attention_no_further_off_than_plain(
    head_dim: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    tokens, dim = 2_000, 2 * head_dim
    lengths = packed_lengths(tokens)
    others = lengths.flip(0) if kind == "cross" else lengths
    spans = spans_between(lengths, others, tokens, tokens, kind == "causal")
    shapes: list[tuple[int, ...]] = [(tokens, dim)]
    if kind == "cross":
        shapes += [(tokens, dim), (dim, dim), (dim,), (2 * dim, dim), (2 * dim,)]
    else:
        shapes += [(3 * dim, dim), (3 * dim,)]
    given = [torch.randn(*s, device="cuda", dtype=torch.float64) / s[-1] ** 0.25 for s in shapes]
    gradient = torch.randn_like(given[0])

    def both_ways(values: list[Tensor], fast: bool) -> list[Tensor]:
        monkeypatch.setattr(attention_module, "KERNELS", fast)
        values = [value.detach().requires_grad_() for value in values]
        operator: Any = cross_attention if kind == "cross" else self_attention
        out = operator(*values, 2, spans)
        out = out[0] if kind == "cross" else out
        return [out, *torch.autograd.grad(out, values, gradient.to(out.dtype))]

    half = [x.bfloat16() for x in given]
    for ours, plain, exact in zip(
        both_ways(half, True), both_ways(half, False), both_ways(given, False), strict=True
    ):
        errors = [float((x - exact).norm() / exact.norm()) for x in (ours, plain)]
        assert errors[0] <= 1.1 * errors[1] + 1e-3


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_flat_layers_no_further_off_than_plain(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same again, recorded as a CUDA graph and replayed with other inputs."""
    torch.manual_seed(0)
    model = Transformer(
        vocab_size=60, **SIZES["small"], max_length=20, causal=False, dropout=0.0, norm=norm
    ).cuda()
    parameters = [*model.encoder.parameters(), *model.decoder.parameters()]
    tokens = 4_000
    lengths = packed_lengths(tokens)
    own = spans_between(lengths, lengths, tokens, tokens)
    target = spans_between(lengths.flip(0), lengths.flip(0), tokens, tokens)
    cross = spans_between(lengths.flip(0), lengths, tokens, tokens)
    seeing = (cross.last > cross.first).unsqueeze(1)
    batches = [[torch.randn(tokens, 256, device="cuda") for _ in range(3)] for _ in range(2)]

    def through(batch: list[Tensor], dtype: torch.dtype, fast: bool) -> list[Tensor]:
        for module in model.modules():  # normalisations stay precise
            if isinstance(module, torch.nn.Linear):
                module.to(dtype)
        x, y, gradient = (given.to(dtype) for given in batch)
        monkeypatch.setattr(attention_module, "KERNELS", fast)
        hidden = encode_flat(model.encoder, x, own, model.encoder_norm)
        out = decode_flat(model.decoder, y, target, hidden, cross, model.decoder_norm)
        return [out, *torch.autograd.grad(out, parameters, gradient * seeing)]

    recorder = Recorder()  # whose stream leaves remember: all that is differentiated is on it
    exact, plain = (
        [recorder.compute(partial(through, batch, dtype, fast=False)) for batch in batches]
        for dtype in (torch.float32, torch.bfloat16)
    )
    given = [value.clone() for value in batches[0]]
    recorder.compute(lambda: through(given, torch.bfloat16, fast=True))
    graph, found = recorder.record(lambda: through(given, torch.bfloat16, fast=True))
    for batch, right, theirs in zip(batches, exact, plain, strict=True):
        for place, value in zip(given, batch, strict=True):
            place.copy_(value)
        graph.replay()
        for mine, other, true in zip(found, theirs, right, strict=True):
            errors = [float((x.float() - true).norm() / true.norm()) for x in (mine, other)]
            assert errors[0] <= 1.2 * errors[1] + 2e-3


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputation_saves_memory_and_changes_nothing(compiled: bool) -> None:
    """In bfloat16 with dropout: what is computed again must have dropped the same."""
    torch.manual_seed(0)
    model = Transformer(vocab_size=1_000, **SIZES["base"], max_length=64, causal=False, dropout=0.1)
    initialise(model)
    model.cuda()
    source = torch.randint(7, 1_000, (400, 30), device="cuda")
    masks = torch.full_like(source, MASK)
    if compiled:  # as the trainer does
        torch.compiler.reset()
        for layer in (*model.encoder, *model.decoder):
            layer.compile(dynamic=True)

    def step() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            hidden = model.decode(masks, masks != PAD, model.encode(source))
            loss = oaxe.linear_xe_loss(hidden, model.output_weight, source)
        loss.backward()  # type: ignore[no-untyped-call]
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    found, used = [], []
    for model.recompute in (False, True):
        step()  # compiles, and makes room for the gradients
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found.append([tensor.clone() for tensor in step()])
        used.append(torch.cuda.max_memory_allocated() - before)
    assert used[1] < 0.5 * used[0], used
    little = 0.05 if compiled else 0.01  # other roundings between fused steps; other sums
    for ours, plain in zip(found[1], found[0], strict=True):
        assert (ours - plain).norm() <= little * plain.norm() + 1e-6
