"""Losses on a CUDA device: values, gradients, memory, and no waiting; ``pytest -m gpu``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.losses import linear_softmax
from tests.gpu import GPU

pytestmark = GPU


def linear_example(
    dtype: torch.dtype, vocab: int = 5_000, *, confidence: float = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, embedding and target; the more confidence, the likelier the target."""
    generator = torch.Generator("cuda").manual_seed(3)
    hidden = torch.randn(40, 30, 64, device="cuda", generator=generator)
    embedding = 0.3 * torch.randn(vocab, 64, device="cuda", generator=generator)
    target = torch.randint(vocab, (40, 30), device="cuda", generator=generator)
    hidden += confidence * embedding[target]
    lengths = torch.randint(1, 31, (40, 1), device="cuda", generator=generator)
    target = target.masked_fill(torch.arange(30, device="cuda") >= lengths, -100)
    return hidden.to(dtype).requires_grad_(), embedding.to(dtype).requires_grad_(), target


def class_weights(vocab: int = 5_000) -> Tensor:
    return torch.linspace(0.1, 2, vocab, device="cuda")


def test_nothing_waits_for_the_device() -> None:
    hidden, embedding, target = linear_example(torch.bfloat16)
    oaxe.linear_oaxe_loss(hidden, embedding, target)
    weight = class_weights()
    torch.cuda.set_sync_debug_mode("error")
    try:
        oaxe.linear_assignment(torch.randn(8, 40, 40, device="cuda"))
        loss, _ = oaxe.linear_oaxe_loss(
            hidden, embedding, target,
            weight=weight, truncation=0.1, label_smoothing=0.1, return_order=True,
        )  # fmt: skip
        loss = loss + oaxe.linear_axe_loss(hidden, embedding, target, blank=0)
        loss = loss + oaxe.linear_bag_of_ngrams_loss(hidden, embedding, target)
        loss = loss + oaxe.linear_ngram_oaxe_loss(hidden, embedding, target, truncation=0.1)
        gradients = torch.autograd.grad(loss, [hidden, embedding])
    finally:
        torch.cuda.set_sync_debug_mode("default")  # waiting would have raised in between
    assert all(gradient.isfinite().all() for gradient in gradients)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("xe", {}),
    ("xe", {"label_smoothing": 0.1}),
    ("oaxe", {}),
    ("oaxe", {"truncation": 1e-3, "label_smoothing": 0.1}),
    ("xe", {"weight": True, "label_smoothing": 0.1}),
    ("oaxe", {"weight": True}),
    ("axe", {"blank": 0}),
    ("bag_of_ngrams", {"n": 2}),
    ("ngram_oaxe", {"n": 3, "truncation": 1e-3, "label_smoothing": 0.1}),
]


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_losses_no_further_off_than_plain_ones(
    name: str,
    options: dict[str, Any],
    dtype: torch.dtype,
    reduction: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(linear_softmax.CHUNK_BYTES, "cuda", 500 * 5_000 * dtype.itemsize)
    *inputs, target = linear_example(dtype)
    ours, plain = getattr(oaxe, f"linear_{name}_loss"), getattr(oaxe, f"{name}_loss")
    exact = [x.detach().double().requires_grad_() for x in inputs]
    options = options | {"reduction": reduction}
    if "weight" in options:
        options["weight"] = class_weights()
    results = {
        "exact": (plain(F.linear(*exact), target, **options).sum(), exact),
        "plain": (plain(F.linear(*inputs), target, **options).sum(), inputs),
        "ours": (ours(*inputs, target, **options).sum(), inputs),
    }
    check_no_further_off(results, dtype)


def check_no_further_off(
    results: dict[str, tuple[Tensor, list[Tensor]]], dtype: torch.dtype
) -> None:
    """Loss and gradients of ``ours`` are about as near to ``exact`` as those of all others."""
    right = [results["exact"][0], *torch.autograd.grad(*results["exact"])]
    error: dict[str, list[float]] = {}
    for who in results.keys() - {"exact"}:
        found = [results[who][0], *torch.autograd.grad(*results[who])]
        error[who] = [
            float((one.double() - other).norm() / other.norm())
            for one, other in zip(found, right, strict=True)
        ]
    little = {8: 1e-12, 4: 1e-5, 2: 2e-3}[dtype.itemsize]
    for theirs in error.values():
        for off, other in zip(error["ours"], theirs, strict=True):
            assert off <= 1.2 * other + little, error


def torch_xe(hidden: Tensor, embedding: Tensor, target: Tensor) -> Tensor:
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("torch is older than 2.13")
    options = torch.nn.LinearCrossEntropyOptions()  # in chunks
    return F.linear_cross_entropy(
        hidden.flatten(0, 1), embedding, target.flatten(), options=options
    )


def liger_xe(hidden: Tensor, embedding: Tensor, target: Tensor) -> Tensor:
    liger = pytest.importorskip("liger_kernel.transformers", reason="Liger is not installed")
    fused = liger.LigerFusedLinearCrossEntropyLoss()
    loss: Tensor = fused(embedding, hidden.flatten(0, 1), target.flatten())
    return loss


@pytest.mark.parametrize("peer", [torch_xe, liger_xe])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_xe_no_further_off_than_other_fused_losses(
    peer: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    *inputs, target = linear_example(dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    results = {
        "exact": (oaxe.xe_loss(F.linear(*exact), target), exact),
        "peer": (peer(*inputs, target), inputs),
        "ours": (oaxe.linear_xe_loss(inputs[0], inputs[1], target), inputs),
    }
    check_no_further_off(results, dtype)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 5.0, 30.0])
@pytest.mark.parametrize(("name", "options"), OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_loss_is_negative(
    name: str, options: dict[str, Any], dtype: torch.dtype, confidence: float
) -> None:
    hidden, embedding, target = linear_example(dtype, confidence=confidence)
    if "weight" in options:
        options = options | {"weight": class_weights()}
    loss = getattr(oaxe, f"linear_{name}_loss")
    for reduction in ("none", "sum"):
        value = loss(hidden, embedding, target, reduction=reduction, **options)
        assert (value >= 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_logsumexp_does_not_round_logits_to_half_precision(
    dtype: torch.dtype, with_bias: bool
) -> None:
    hidden, embedding, _ = linear_example(dtype, confidence=5)
    bias = class_weights().to(dtype) if with_bias else None
    exact = [None if x is None else x.detach().double() for x in (hidden, embedding, bias)]
    found = oaxe.linear_logsumexp(hidden, embedding, bias)
    expected = F.linear(*exact).logsumexp(-1).float()  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("vocab", [1, 999, 40_000, 130_001])
def test_vocabularies_of_any_size(vocab: int) -> None:
    hidden, embedding, target = linear_example(torch.bfloat16, vocab)
    ours = oaxe.linear_xe_loss(hidden, embedding, target, label_smoothing=0.1)
    plain = oaxe.xe_loss(F.linear(hidden, embedding), target, label_smoothing=0.1)
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)
    for one, other in zip(
        torch.autograd.grad(ours, [hidden, embedding]),
        torch.autograd.grad(plain, [hidden, embedding]),
        strict=True,
    ):
        assert (one - other).norm() <= 0.02 * other.norm() + 1e-6


@pytest.mark.parametrize("name", ["xe", "oaxe", "axe", "ngram_oaxe"])
def test_compiled_without_a_graph_break(name: str) -> None:
    hidden, embedding, target = linear_example(torch.float32)
    options = {"blank": 0} if name == "axe" else {}
    loss = getattr(oaxe, f"linear_{name}_loss")

    def step(hidden: Tensor, embedding: Tensor) -> Tensor:
        result: Tensor = loss(2 * hidden, embedding, target, **options)
        return result

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True)(hidden, embedding)
    expected = step(hidden, embedding)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(
        torch.autograd.grad(compiled, embedding), torch.autograd.grad(expected, embedding)
    )


def test_memory_stays_far_below_that_of_the_logits() -> None:
    hidden = torch.randn(64, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    embedding = torch.randn(32_000, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(32_000, (64, 512), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    oaxe.linear_oaxe_loss(hidden, embedding, target).backward()  # type: ignore[no-untyped-call]
    used = torch.cuda.max_memory_allocated() - before
    assert used < 0.7 * target.numel() * len(embedding) * 2


def test_trains_like_the_plain_loss() -> None:
    """The same small model in float32, step by step: both ways follow the same loss curve."""
    torch.manual_seed(0)
    vocab, dim = 200, 32
    target = torch.randint(vocab, (64, 12), device="cuda")
    start = torch.randn(64, 12, dim, device="cuda"), torch.randn(vocab, dim, device="cuda")
    curves = []
    for linear in (False, True):
        parameters = [x.clone().requires_grad_() for x in start]
        optimizer = torch.optim.Adam(parameters, lr=0.02)
        curve = []
        for _ in range(100):
            optimizer.zero_grad()
            if linear:
                hidden, embedding = parameters
                loss = oaxe.linear_oaxe_loss(hidden, embedding, target, label_smoothing=0.1)
            else:
                logits = F.linear(*parameters)
                loss = oaxe.oaxe_loss(logits, target, label_smoothing=0.1)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            curve.append(loss.detach())
        curves.append(torch.stack(curve).tolist())
    assert curves[0][-1] < 0.7 * curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=0.02)
