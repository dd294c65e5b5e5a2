"""Sums over paths on a CUDA device: kernels against PyTorch, CUDA graphs, no waiting."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.losses import ctc, dag
from oaxe.losses.arguments import at_least_float32
from oaxe.losses.divergence import linear_divergence
from oaxe.losses.lattice import best_states
from tests.gpu import GPU

pytestmark = GPU

BLANK = 0


def lengths_of(batch: int, longest: int, least: int = 1) -> Tensor:
    lengths = torch.randint(least, longest + 1, (batch,), device="cuda")
    lengths[0] = longest
    return lengths


def ctc_example(batch: int, positions: int, words: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    emissions = (2 * torch.randn(batch, positions, words + 1, device="cuda")).log_softmax(-1)
    said = torch.randint(1, 9, (batch, words), device="cuda")
    return emissions, said, lengths_of(batch, positions), lengths_of(batch, words, 0)


def dag_example(batch: int, vertices: int, words: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    emissions = 3 * torch.randn(batch, words, vertices, device="cuda") - 5
    later = torch.ones(vertices, vertices, device="cuda").triu(1) > 0
    scores = 2 * torch.randn(batch, vertices, vertices, device="cuda")
    scores = scores.masked_fill(torch.rand_like(scores) < 0.1, -torch.inf)
    scores[:, torch.arange(vertices - 1), torch.arange(1, vertices)] = 0.0
    links = scores.masked_fill(~later, -torch.inf).log_softmax(-1)
    return emissions, links, lengths_of(batch, words, 0), lengths_of(batch, vertices)


Operands = tuple[Tensor, Tensor, Tensor, Tensor]
CASES: list[tuple[Any, Any, Callable[..., Operands], tuple[int, int, int]]] = [
    (ctc, ctc.CTCLattice, ctc_example, (40, 54, 27)),
    (ctc, ctc.CTCLattice, ctc_example, (3, 300, 140)),
    (ctc, ctc.CTCLattice, ctc_example, (2, 1_100, 1_000)),
    (ctc, ctc.CTCLattice, ctc_example, (5, 7, 0)),
    (dag, dag.DAGLattice, dag_example, (40, 108, 27)),
    (dag, dag.DAGLattice, dag_example, (7, 33, 32)),
    (dag, dag.DAGLattice, dag_example, (5, 200, 40)),
    (dag, dag.DAGLattice, dag_example, (3, 700, 30)),
    (dag, dag.DAGLattice, dag_example, (2, 1_024, 60)),
    (dag, dag.DAGLattice, dag_example, (2, 1_300, 9)),
    (dag, dag.DAGLattice, dag_example, (4, 1, 1)),
]


@pytest.mark.parametrize(("module", "lattice", "example", "sizes"), CASES)
def test_kernels_equal_pytorch(
    module: Any, lattice: Any, example: Callable[..., Operands], sizes: tuple[int, int, int]
) -> None:
    given = example(*sizes)
    exact = [x.double() if x.is_floating_point() else x for x in given]
    total, alpha = module._sum(*given)
    right, right_alpha = module._sum(*exact)  # float64 has no kernel
    torch.testing.assert_close(total.double(), right, atol=1e-3, rtol=1e-5)
    weight = torch.randn(sizes[0], device="cuda")
    found = module._backward(weight, total, alpha, *given)
    wanted = module._backward(weight.double(), right, right_alpha, *exact)
    pairs = [(found, wanted)] if isinstance(found, Tensor) else zip(found, wanted, strict=True)
    for one, other in pairs:
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), other, atol=2e-3, rtol=2e-3)
    path = module._best_path(*given)
    # The same sums in the same order: the path is the same, also among equals.
    assert torch.equal(path.cpu(), best_states(lattice(*(x.cpu() for x in given))))


def test_ctc_equals_that_of_torch() -> None:
    batch, positions, words, vocab = 30, 60, 20, 400
    logits = torch.randn(batch, positions, vocab, device="cuda", requires_grad=True)
    target = torch.randint(1, 30, (batch, words), device="cuda")
    n_positions, n_words = lengths_of(batch, positions, 2), lengths_of(batch, words, 0)
    mask = torch.arange(positions, device="cuda") < n_positions.unsqueeze(1)
    ignored = torch.arange(words, device="cuda") >= n_words.unsqueeze(1)
    ours = oaxe.ctc_loss(
        logits, target.masked_fill(ignored, -100), blank=BLANK, logit_mask=mask, reduction="none"
    )
    theirs = F.ctc_loss(
        logits.log_softmax(-1).transpose(0, 1), target, n_positions, n_words,
        blank=BLANK, reduction="none", zero_infinity=True,
    )  # fmt: skip
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours.sum(), logits),
        torch.autograd.grad(theirs.sum(), logits),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def linear_example(dtype: torch.dtype) -> Inputs:
    """Hidden states, embedding, scores of links, target and the vertices that take part."""
    hidden = torch.randn(24, 60, 64, device="cuda")
    embedding = 0.3 * torch.randn(500, 64, device="cuda")
    scores = torch.randn(24, 60, 60, device="cuda", requires_grad=True)
    target = torch.randint(1, 500, (24, 15), device="cuda")
    ignored = torch.arange(15, device="cuda") >= lengths_of(24, 15, 2).unsqueeze(1)
    mask = torch.arange(60, device="cuda") < lengths_of(24, 60, 31).unsqueeze(1)
    return (
        hidden.to(dtype).requires_grad_(), embedding.to(dtype).requires_grad_(), scores,
        target.masked_fill(ignored, -100), mask,
    )  # fmt: skip


def links_of(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """To later vertices; to those of the mask, they add up to 1."""
    vertex = torch.arange(scores.shape[1], device=scores.device)
    wrong = vertex <= vertex.unsqueeze(1)
    wrong = wrong if mask is None else wrong | ~mask.unsqueeze(1)
    return scores.masked_fill(wrong, -1e4).log_softmax(-1)


def linear_losses(
    hidden: Tensor, embedding: Tensor, scores: Tensor, target: Tensor, mask: Tensor
) -> Tensor:
    options: Any = {"logit_mask": mask, "zero_infinity": True, "reduction": "sum"}
    graph = oaxe.linear_dag_loss(hidden, embedding, links_of(scores), target, **options)
    return graph + oaxe.linear_ctc_loss(hidden, embedding, target, blank=BLANK, **options)


def linear_objectives(
    hidden: Tensor, embedding: Tensor, scores: Tensor, target: Tensor, mask: Tensor
) -> Tensor:
    options: Any = {"logit_mask": mask, "reduction": "sum"}
    links = links_of(scores, mask)
    graph = oaxe.linear_dag_ngram_loss(hidden, embedding, links, target, **options)
    options |= {"blank": BLANK, "capacity": mask.numel() - 1}
    ctc = oaxe.linear_ctc_ngram_loss(hidden, embedding, target, **options)
    coco = oaxe.linear_coco_loss(hidden, embedding, target, **options)
    other, capacity = hidden.roll(1, 0), options["capacity"]
    apart = linear_divergence(hidden, other, embedding, mask=mask, capacity=capacity)
    return graph + ctc + coco + apart


def plain_losses(
    hidden: Tensor, embedding: Tensor, scores: Tensor, target: Tensor, mask: Tensor
) -> Tensor:
    options: Any = {"logit_mask": mask, "zero_infinity": True, "reduction": "sum"}
    logits = F.linear(hidden, embedding)
    graph = oaxe.dag_loss(logits, links_of(scores), target, **options)
    return graph + oaxe.ctc_loss(logits, target, blank=BLANK, **options)


def plain_objectives(
    hidden: Tensor, embedding: Tensor, scores: Tensor, target: Tensor, mask: Tensor
) -> Tensor:
    options: Any = {"logit_mask": mask, "reduction": "sum"}
    logits, links = F.linear(hidden, embedding), links_of(scores, mask)
    graph = oaxe.dag_ngram_loss(logits, links, target, **options)
    ctc = oaxe.ctc_ngram_loss(logits, target, blank=BLANK, **options)
    coco = oaxe.coco_loss(logits, target, blank=BLANK, **options)
    p, q = (at_least_float32(x).log_softmax(-1) for x in (logits, logits.roll(1, 0)))
    apart = torch.where(mask, ((p.exp() - q.exp()) * (p - q)).sum(-1), 0).sum() / 2
    return graph + ctc + coco + apart


@pytest.mark.parametrize(
    ("linear", "plain"), [(linear_losses, plain_losses), (linear_objectives, plain_objectives)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_losses_no_further_off_than_plain_ones(
    dtype: torch.dtype, linear: Callable[..., Tensor], plain: Callable[..., Tensor]
) -> None:
    *inputs, target, mask = linear_example(dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    value = plain(*exact, target, mask)
    right = [value, *torch.autograd.grad(value, exact)]
    errors = []
    for loss in (linear, plain):
        found = loss(*inputs, target, mask)
        results = [found, *torch.autograd.grad(found, inputs)]
        errors.append(
            [
                float((one.double() - other).norm() / other.norm())
                for one, other in zip(results, right, strict=True)
            ]
        )
    little = {8: 1e-12, 4: 2e-5, 2: 3e-3}[dtype.itemsize]
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.2 * theirs + little, errors


def test_nothing_waits_for_the_device() -> None:
    given = linear_example(torch.bfloat16)
    hidden, embedding, scores, target, mask = given
    logits, links = F.linear(hidden, embedding).detach(), links_of(scores).detach()

    def work() -> tuple[Tensor, ...]:
        loss = linear_losses(*given) + plain_losses(*given)
        loss = loss + linear_objectives(*given) + plain_objectives(*given)
        gradients = torch.autograd.grad(loss, [hidden, embedding, scores])
        labels = oaxe.ctc_best_path(logits, target, blank=BLANK, logit_mask=mask)
        vertices = oaxe.dag_best_path(logits, links, target, logit_mask=mask)
        return *gradients, labels, vertices

    work()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = work()
    finally:
        torch.cuda.set_sync_debug_mode("default")  # waiting would have raised in between
    assert all(x.isfinite().all() for x in found[:3])
    assert (found[3][~mask] == -100).all()
    assert (found[4][target == -100] == -1).all()


def test_recorded_and_replayed_with_other_inputs() -> None:
    given = linear_example(torch.float32)
    others = linear_example(torch.float32)

    def work(inputs: Inputs) -> list[Tensor]:
        hidden, embedding, scores, target, mask = inputs
        loss = linear_losses(*inputs) + linear_objectives(*inputs)
        logits = F.linear(hidden, embedding).detach()
        return [
            loss,
            *torch.autograd.grad(loss, [hidden, embedding, scores]),
            oaxe.ctc_best_path(logits, target, blank=BLANK, logit_mask=mask),
            oaxe.dag_best_path(logits, links_of(scores), target, logit_mask=mask),
        ]

    expected = [x.detach().clone() for x in work(others)]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work(given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = work(given)
    with torch.no_grad():
        for own, other in zip(given, others, strict=True):
            own.copy_(other)
    graph.replay()
    for one, other in zip(recorded, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("losses", [linear_losses, linear_objectives])
def test_compiled_without_a_graph_break(losses: Callable[..., Tensor]) -> None:
    given = linear_example(torch.float32)
    torch.compiler.reset()
    compiled, expected = torch.compile(losses, fullgraph=True)(*given), losses(*given)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(
        torch.autograd.grad(compiled, given[:3]),
        torch.autograd.grad(expected, given[:3]),
        atol=1e-4,
        rtol=1e-4,
    )


def test_memory_stays_far_below_that_of_the_logits() -> None:
    hidden = torch.randn(64, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    embedding = torch.randn(64_000, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(1, 64_000, (64, 60), device="cuda")
    scores = torch.randn(64, 256, 256, device="cuda")
    for loss in (
        lambda: oaxe.linear_ctc_loss(hidden, embedding, target, blank=BLANK),
        lambda: oaxe.linear_dag_loss(hidden, embedding, links_of(scores), target),
    ):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss().backward()  # type: ignore[no-untyped-call]
        used = torch.cuda.max_memory_allocated() - before
        assert used < 0.7 * hidden.shape[0] * hidden.shape[1] * len(embedding) * 2
        hidden.grad = embedding.grad = None
