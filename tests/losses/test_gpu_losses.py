"""Losses on a CUDA device: values, gradients, memory, and no waiting; ``pytest -m gpu``."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.losses import linear_softmax
from tests.gpu import GPU

pytestmark = GPU


def linear_example(dtype: torch.dtype, vocab: int = 5_000) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(3)
    hidden = torch.randn(40, 30, 64, device="cuda", generator=generator).to(dtype)
    weight = (0.3 * torch.randn(vocab, 64, device="cuda", generator=generator)).to(dtype)
    target = torch.randint(vocab, (40, 30), device="cuda", generator=generator)
    lengths = torch.randint(1, 31, (40, 1), device="cuda", generator=generator)
    target = target.masked_fill(torch.arange(30, device="cuda") >= lengths, -100)
    return hidden.requires_grad_(), weight.requires_grad_(), target


def test_nothing_waits_for_the_device() -> None:
    hidden, weight, target = linear_example(torch.bfloat16)
    oaxe.linear_oaxe_loss(hidden, weight, target)
    torch.cuda.set_sync_debug_mode("error")
    try:
        oaxe.linear_assignment(torch.randn(8, 40, 40, device="cuda"))
        loss = oaxe.linear_oaxe_loss(hidden, weight, target, truncation=0.1, label_smoothing=0.1)
        loss = loss + oaxe.linear_axe_loss(hidden, weight, target, blank=0)
        gradients = torch.autograd.grad(loss, [hidden, weight])
    finally:
        torch.cuda.set_sync_debug_mode("default")  # waiting would have raised in between
    assert all(gradient.isfinite().all() for gradient in gradients)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("xe", {}),
    ("xe", {"label_smoothing": 0.1}),
    ("oaxe", {}),
    ("oaxe", {"truncation": 1e-3, "label_smoothing": 0.1}),
    ("axe", {"blank": 0}),
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
    hidden, weight, target = linear_example(dtype)
    ours, plain = getattr(oaxe, f"linear_{name}_loss"), getattr(oaxe, f"{name}_loss")
    inputs = hidden, weight
    exact = [x.detach().double().requires_grad_() for x in inputs]
    options = options | {"reduction": reduction}
    results = {
        "exact": (plain(F.linear(*exact), target, **options).sum(), exact),
        "plain": (plain(F.linear(*inputs), target, **options).sum(), inputs),
        "ours": (ours(*inputs, target, **options).sum(), inputs),
    }
    error: dict[str, list[float]] = {"plain": [], "ours": []}
    right = [results["exact"][0], *torch.autograd.grad(*results["exact"])]
    for who, errors in error.items():
        found = [results[who][0], *torch.autograd.grad(*results[who])]
        for one, other in zip(found, right, strict=True):
            errors.append(float((one.double() - other).norm() / other.norm()))
    little = {8: 1e-12, 4: 1e-5, 2: 2e-3}[dtype.itemsize]
    for off, plainly in zip(error["ours"], error["plain"], strict=True):
        assert off <= 1.2 * plainly + little, error


@pytest.mark.parametrize("vocab", [1, 999, 40_000, 130_001])
def test_vocabularies_of_any_size(vocab: int) -> None:
    hidden, weight, target = linear_example(torch.bfloat16, vocab)
    ours = oaxe.linear_xe_loss(hidden, weight, target, label_smoothing=0.1)
    plain = oaxe.xe_loss(F.linear(hidden, weight), target, label_smoothing=0.1)
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)
    for one, other in zip(
        torch.autograd.grad(ours, [hidden, weight]),
        torch.autograd.grad(plain, [hidden, weight]),
        strict=True,
    ):
        assert (one - other).norm() <= 0.02 * other.norm() + 1e-6


@pytest.mark.parametrize("name", ["xe", "oaxe", "axe"])
def test_compiled_without_a_graph_break(name: str) -> None:
    hidden, weight, target = linear_example(torch.float32)
    options = {"blank": 0} if name == "axe" else {}

    def step(hidden: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = getattr(oaxe, f"linear_{name}_loss")(2 * hidden, weight, target, **options)
        return result

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True)(hidden, weight)
    expected = step(hidden, weight)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(
        torch.autograd.grad(compiled, weight), torch.autograd.grad(expected, weight)
    )


def test_memory_stays_far_below_that_of_the_logits() -> None:
    hidden = torch.randn(64, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(32_000, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(32_000, (64, 512), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    oaxe.linear_oaxe_loss(hidden, weight, target).backward()  # type: ignore[no-untyped-call]
    used = torch.cuda.max_memory_allocated() - before
    assert used < 0.7 * target.numel() * len(weight) * 2


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
                hidden, weight = parameters
                loss = oaxe.linear_oaxe_loss(hidden, weight, target, label_smoothing=0.1)
            else:
                logits = F.linear(*parameters)
                loss = oaxe.oaxe_loss(logits, target, label_smoothing=0.1)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            curve.append(loss.detach())
        curves.append(torch.stack(curve).tolist())
    assert curves[0][-1] < 0.7 * curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=0.02)
