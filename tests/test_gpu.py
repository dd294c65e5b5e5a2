"""On a CUDA device: ``pytest -m gpu``.

OAXE_CAMPAIGN sets how many assignments are compared with scipy's, OAXE_SEED which.
"""

import os
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import oaxe
from oaxe.decoding.one_pass import translate_batch
from oaxe.decoding.replay import Replays
from oaxe.decoding.translator import Translator
from oaxe.losses import NotFiniteError, assignment, linear_softmax
from oaxe.model import attention as attention_module
from oaxe.model.attention import attention
from oaxe.model.feed_forward import linear_gelu
from oaxe.model.residual import add_and_normalise
from oaxe.model.transformer import SIZES, Transformer
from oaxe.text.subwords import train_subwords
from tests.matrices import KINDS, hard_matrices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CAMPAIGN = int(os.environ.get("OAXE_CAMPAIGN", "20000"))


def check_exact(cost: Tensor, mask: Tensor) -> float:
    """On the GPU against scipy in float64, every problem.

    Returns how much of the allowed rounding the worst problem needed.
    """
    n = cost.shape[1]
    column = oaxe.linear_assignment(cost.cuda(), mask.cuda()).cpu()
    place = torch.arange(n)
    assert torch.equal(column.sort(dim=1).values, place.expand_as(column))
    assert (column == place)[~mask].all()
    unit = 1e-14 if cost.dtype == torch.float64 else 2.0**-24
    worst = 0.0
    for costs, takes_part, ours in zip(cost.double(), mask, column, strict=True):
        places = takes_part.nonzero().flatten()
        inner = costs[places][:, places].numpy()
        best = inner[linear_sum_assignment(inner)].sum()
        excess = float(costs[places, ours[places]].sum()) - best
        allowed = unit * n * np.abs(inner).max(initial=0)
        assert excess <= allowed
        worst = max(worst, excess / max(allowed, 1e-300))
    return worst


def random_masks(rng: np.random.Generator, batch: int, n: int, turn: int) -> Tensor:
    """By turns: all places, prefixes, any."""
    if turn % 3 == 0:
        return torch.ones(batch, n, dtype=torch.bool)
    if turn % 3 == 1:
        lengths = torch.from_numpy(rng.integers(0, n + 1, size=(batch, 1)))
        return torch.arange(n) < lengths
    return torch.from_numpy(rng.random((batch, n)) < 0.7)


def test_assignment_campaign() -> None:
    """Random and adversarial problems, most of them short; every class of sizes comes up."""
    rng = np.random.default_rng(int(os.environ.get("OAXE_SEED", "0")))
    solved = turn = 0
    worst = 0.0
    while solved < CAMPAIGN:
        longest = 1024 if turn % 100 == 99 else 200 if turn % 10 == 9 else 40
        n = int(rng.integers(0, longest + 1))
        batch = int(np.clip(4e5 / max(n, 1) ** 2, 2, 1000))
        cost = hard_matrices(KINDS[turn % len(KINDS)], rng, batch, n)
        dtype = [torch.float32, torch.float64, torch.bfloat16][turn % 5 % 3]
        mask = random_masks(rng, batch, n, turn)
        worst = max(worst, check_exact(torch.from_numpy(cost).to(dtype), mask))
        solved += batch
        turn += 1
    print(f"{solved} problems, worst excess {worst:.4f} of the allowed rounding")
    oaxe.check_costs()


@pytest.mark.parametrize("n", [32, 33, 64, 65, 128, 129, 256, 257, 512, 513, 1023, 1024])
def test_assignment_at_the_borders_of_the_classes(n: int) -> None:
    cost = torch.randn(3, n, n)
    mask = torch.arange(n) < torch.tensor([[n], [n // 2], [n // 2 + 1]])
    check_exact(cost, mask)


def test_longer_than_the_kernel_takes() -> None:
    check_exact(torch.randn(1, 1_100, 1_100), torch.ones(1, 1_100, dtype=torch.bool))


def test_assignment_is_deterministic() -> None:
    cost = torch.randn(500, 60, 60, device="cuda").round()
    first = oaxe.linear_assignment(cost)
    assert all(torch.equal(oaxe.linear_assignment(cost), first) for _ in range(5))


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


def test_costs_that_are_not_finite_are_named_later() -> None:
    cost = torch.randn(20, 9, 9, device="cuda")
    cost[3, 0, 8], cost[17, 8, 0] = torch.nan, torch.inf
    column = oaxe.linear_assignment(cost)
    assert column[3].tolist() == list(range(9))  # also waits for the device
    with pytest.raises(NotFiniteError, match=r"2 batch rows of a call before.*: 3, 17"):
        oaxe.linear_assignment(cost[:1])
    oaxe.linear_assignment(cost)
    with pytest.raises(NotFiniteError, match=": 3, 17"):
        oaxe.check_costs()
    oaxe.check_costs()
    oaxe.linear_assignment(cost)
    assignment.forget_costs()
    oaxe.check_costs()


def test_assignment_in_a_cuda_graph() -> None:
    cost, other = torch.randn(2, 50, 70, 70, device="cuda")
    expected = oaxe.linear_assignment(other)
    given = cost.clone()
    oaxe.linear_assignment(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        column = oaxe.linear_assignment(given)
    given.copy_(other)
    graph.replay()
    assert torch.equal(column, expected)


def test_operators_are_registered_correctly() -> None:
    cost, mask = torch.randn(3, 5, 5, device="cuda"), torch.rand(3, 5, device="cuda") < 0.7
    torch.library.opcheck(assignment._linear_assignment, (cost, mask))
    torch.library.opcheck(assignment._linear_assignment, (cost, None))


def linear_example(dtype: torch.dtype, vocab: int = 5_000) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(3)
    hidden = torch.randn(40, 30, 64, device="cuda", generator=generator).to(dtype)
    weight = (0.3 * torch.randn(vocab, 64, device="cuda", generator=generator)).to(dtype)
    target = torch.randint(vocab, (40, 30), device="cuda", generator=generator)
    lengths = torch.randint(1, 31, (40, 1), device="cuda", generator=generator)
    target = target.masked_fill(torch.arange(30, device="cuda") >= lengths, -100)
    return hidden.requires_grad_(), weight.requires_grad_(), target


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


def learning_curve(loss: str, fast: bool, half: bool, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Of a small model that learns to repeat its source, in float32 or bfloat16."""
    monkeypatch.setattr(attention_module, "KERNELS", fast)
    monkeypatch.setattr(attention_module, "LARGE", 0)
    torch.manual_seed(0)
    model = Transformer(
        vocab_size=60, **SIZES["tiny"], max_length=20, causal=False, dropout=0.0
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plain: Any = {"xe": oaxe.xe_loss, "oaxe": oaxe.oaxe_loss}[loss]
    linear: Any = {"xe": oaxe.linear_xe_loss, "oaxe": oaxe.linear_oaxe_loss}[loss]
    values = []
    for _ in range(120):
        source = torch.randint(7, 60, (256, 10), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            masks = torch.full_like(source, 4)
            hidden, _ = model(source, masks, masks != 0)
            if fast:
                value = linear(hidden, model.output_weight, source)
            else:
                value = plain(model.logits(hidden), source)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.detach())
    oaxe.check_costs()
    return torch.stack(values).view(-1, 10).mean(1)  # ten updates together


@pytest.mark.parametrize("loss", ["xe", "oaxe"])
def test_same_learning_curve(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast path is no further from float32 than plain bfloat16 is, but for a little."""
    exact = learning_curve(loss, fast=False, half=False, monkeypatch=monkeypatch)
    plain = learning_curve(loss, fast=False, half=True, monkeypatch=monkeypatch)
    ours = learning_curve(loss, fast=True, half=True, monkeypatch=monkeypatch)
    assert exact[-1] < 0.7 * exact[0]  # it learns
    allowed = (plain - exact).abs().max() + 0.02 * exact
    assert ((ours - exact).abs() <= allowed).all(), (exact, plain, ours)


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputation_saves_memory_and_changes_nothing(compiled: bool) -> None:
    """In bfloat16 with dropout: what is computed again must have dropped the same."""
    torch.manual_seed(0)
    model = Transformer(
        vocab_size=1_000, **SIZES["base"], max_length=64, causal=False, dropout=0.1
    ).cuda()
    source = torch.randint(7, 1_000, (400, 30), device="cuda")
    masks = torch.full_like(source, 4)
    if compiled:  # as the trainer does
        torch.compiler.reset()
        for layer in (*model.encoder, *model.decoder):
            layer.compile(dynamic=True)

    def step() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.bfloat16):
            hidden, _ = model(source, masks, masks != 0)
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


@pytest.mark.parametrize(("rows", "columns"), [(5, 12), (12, 5), (9, 9), (100, 20)])
def test_rectangles_as_on_the_cpu(rows: int, columns: int) -> None:
    cost = torch.rand(50, rows, columns)
    masks: list[dict[str, Tensor]] = [{}]
    if rows >= columns:
        masks.append({"column_mask": torch.rand(50, columns) < 0.7})
    for options in masks:
        on_gpu = {name: mask.cuda() for name, mask in options.items()}
        found = oaxe.linear_assignment(cost.cuda(), **on_gpu).cpu()
        expected = oaxe.linear_assignment(cost, **options)
        assert (found >= 0).sum(1).equal((expected >= 0).sum(1))
        totals = [
            cost.gather(2, column.clamp(min=0).unsqueeze(2)).squeeze(2).where(column >= 0, 0).sum(1)
            for column in (found, expected)
        ]
        torch.testing.assert_close(*totals)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nat", {}),
        ("nat", {"refine_steps": 3}),
        ("nat", {"length_candidates": 60}),  # so many places that kernels of our own are recorded
        ("ctc", {}),
    ],
)
@pytest.mark.parametrize("bf16", [False, True])
def test_replayed_passes_say_the_same(kind: str, options: dict[str, Any], bf16: bool) -> None:
    """As without graphs, whatever was said before, and after the weights have changed."""
    upsample = {"nat": 0, "ctc": 2}[kind]
    model = talkative(500, upsample)
    replays = Replays(model)
    for _ in range(2):
        said = set()
        for length in (3, 40, 9, 3, 10, 61):
            source = torch.randint(9, 500, (1, length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                found, expected = (
                    {h.length: h for h in translate_batch(model, source, replays=r, **options)[0]}
                    for r in (replays, None)
                )
            common = found.keys() & expected.keys()
            assert len(common) >= len(found) - 2 * bf16  # a rounding may choose another length
            said.add(tuple(found[max(found)].tokens))
            for ours, theirs in ((found[n], expected[n]) for n in common):
                if not bf16:
                    assert ours.tokens == theirs.tokens
                if not bf16 or "refine_steps" not in options:  # or mask other words
                    assert ours.score == pytest.approx(theirs.score, abs=0.1 if bf16 else 1e-4)
        assert len(said) > 3
        with torch.no_grad():
            model.tokens.weight.add_(0.1 * torch.randn_like(model.tokens.weight))


def talkative(vocab_size: int, upsample: int = 0) -> Transformer:
    """A model of random weights that says other words to other sentences."""
    model = Transformer(
        vocab_size=vocab_size, **SIZES["small"], max_length=60, causal=False, upsample=upsample
    )
    model = model.cuda().eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.05)
    return model


def test_a_translator_replays_and_goes_on_after_a_move(tmp_path: Path) -> None:
    """One sentence by graphs, several without, and a model that left its place and came back."""
    sentences = ["a small dog runs", "two men", "", "the old dog sleeps in a boat near the water"]
    subwords = train_subwords([*sentences[:2], sentences[3]], tmp_path / "subwords.model", 45)
    model = talkative(subwords.vocab_size)
    replayed, plain = (Translator(model, subwords, cuda_graphs=graphs) for graphs in (True, False))
    before = None
    for _ in range(2):
        for lines in ([sentences[0]], sentences, [sentences[3]], [""], [sentences[1]]):
            found, expected = (
                [[(t.text, t.length, t.score) for t in of] for of in t.translate_scored(lines)]
                for t in (replayed, plain)
            )
            for ours, theirs in zip(chain(*found), chain(*expected), strict=True):
                assert ours[:2] == theirs[:2]
                assert ours[2] == pytest.approx(theirs[2], abs=1e-4)
        assert replayed._replays is not None
        assert replayed._replays._graphs
        assert replayed._replays is not before
        before = replayed._replays
        said = plain.translate(sentences)
        assert len(set(said)) == len(sentences)
        model.cpu()
        assert replayed.translate(sentences) == plain.translate(sentences)
        assert replayed._replays is None
        with torch.no_grad():
            model.tokens.weight.mul_(1.5)
        model.cuda()
    assert replayed.cuda_graphs  # none has failed


def test_replays_in_inference_mode_and_without() -> None:
    model = talkative(500)
    replays, source = Replays(model), torch.randint(9, 500, (1, 20), device="cuda")
    expected = translate_batch(model, source)[0][0].tokens
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            assert translate_batch(model, source, replays=replays)[0][0].tokens == expected
