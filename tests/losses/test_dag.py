"""Graphs against all of their paths: values, gradients and best paths."""

import warnings
from itertools import combinations, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oaxe
from oaxe.losses.dag import _best_path, _sum

VOCAB = 4


def links_of(batch: int, vertices: int) -> Tensor:
    """Log-probabilities of later vertices; -inf elsewhere."""
    later = torch.ones(vertices, vertices, dtype=torch.bool).triu(1)
    scores = torch.randn(batch, vertices, vertices, dtype=torch.float64)
    links = scores.masked_fill(~later, -torch.inf).log_softmax(-1)
    return links.masked_fill(~later, -torch.inf)


def example(batch: int, vertices: int, words: int) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.randn(batch, vertices, VOCAB, dtype=torch.float64, requires_grad=True)
    links = links_of(batch, vertices).requires_grad_()
    return logits, links, torch.randint(VOCAB, (batch, words))


def all_paths(vertices: int, words: int) -> list[list[int]]:
    """Every choice of a vertex for each word, from the first vertex to the last, in order."""
    if words == 1:
        return [[0]] if vertices == 1 else []
    inner = combinations(range(1, vertices - 1), words - 2)
    return [[0, *path, vertices - 1] for path in inner] if vertices > 1 else []


def scores_of(logits: Tensor, links: Tensor, target: Tensor, paths: list[list[int]]) -> Tensor:
    log_probs = logits.log_softmax(-1)
    return torch.stack(
        [log_probs[path, target].sum() + links[path[:-1], path[1:]].sum() for path in paths]
    )


def by_brute_force(logits: Tensor, links: Tensor, target: Tensor) -> Tensor:
    paths = all_paths(len(logits), len(target))
    return -scores_of(logits, links, target, paths).logsumexp(0)


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


def check_equal(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    weight = torch.rand_like(ours)
    for one, other in zip(
        gradients((ours * weight).sum(), *inputs),
        gradients((theirs * weight).sum(), *inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-7)


@pytest.mark.parametrize(
    ("vertices", "words"), [(1, 1), (2, 2), (3, 2), (5, 2), (5, 3), (6, 4), (5, 5), (7, 4)]
)
def test_all_paths(vertices: int, words: int) -> None:
    logits, links, target = example(3, vertices, words)
    ours = oaxe.dag_loss(logits, links, target, reduction="none")
    expected = torch.stack(
        [by_brute_force(*one) for one in zip(logits, links, target, strict=True)]
    )
    check_equal(ours, expected, logits, *([links] if words > 1 else []))


@pytest.mark.parametrize(("vertices", "words"), [(1, 1), (3, 2), (6, 3), (6, 4), (5, 5), (7, 4)])
def test_best_path_is_the_best_of_all(vertices: int, words: int) -> None:
    logits, links, target = example(4, vertices, words)
    found = oaxe.dag_best_path(logits, links, target)
    paths = all_paths(vertices, words)
    for b, path in enumerate(found):
        best = scores_of(logits[b], links[b], target[b], paths).argmax()
        assert path.tolist() == paths[int(best)]


@given(
    seed=st.integers(0, 10_000),
    targets=st.lists(st.booleans(), min_size=5, max_size=5),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=2),
)
def test_masked_targets_and_vertices_take_no_part(
    seed: int, targets: list[bool], sizes: list[int]
) -> None:
    torch.manual_seed(seed)
    logits, links, target = example(2, 6, 5)
    kept, n_vertices = torch.tensor(targets), torch.tensor(sizes)
    mask = torch.arange(6) < n_vertices.unsqueeze(1)
    noise = torch.full_like(links, torch.nan)
    inside = mask.unsqueeze(1) & (torch.ones(6, 6).triu(1) > 0)
    given: Any = logits, torch.where(inside, links, noise), target.masked_fill(~kept, -7)
    options: Any = {"logit_mask": mask, "ignore_index": -7}
    losses = oaxe.dag_loss(*given, reduction="none", **options)
    paths = oaxe.dag_best_path(*given, **options)
    assert (paths[:, ~kept] == -1).all()
    for b, n in enumerate(sizes):
        words = target[b, kept]
        possible = all_paths(n, len(words)) if len(words) else []
        one = logits[b, :n], links[b, :n, :n], words
        if not possible:
            assert losses[b] == (torch.inf if len(words) else 0)
            assert (paths[b] == -1).all()
        else:
            torch.testing.assert_close(losses[b], by_brute_force(*one))
            best = possible[int(scores_of(*one, possible).argmax())]
            assert paths[b, kept].tolist() == best
    (of_logits, of_links) = gradients(losses.sum(), logits, links)
    assert of_logits.isfinite().all()
    assert (of_logits[~mask] == 0).all()
    assert (of_links[~inside] == 0).all()


def test_padding_changes_nothing() -> None:
    logits, links, target = example(2, 5, 3)
    alone = oaxe.dag_loss(logits, links, target, reduction="none")
    wide = torch.cat([logits, torch.randn(2, 4, VOCAB, dtype=torch.float64)], 1)
    padded = oaxe.dag_loss(
        wide,
        F.pad(links, (0, 4, 0, 4), value=-1.0),
        F.pad(target, (0, 2), value=-100),
        logit_mask=torch.arange(9).expand(2, -1) < 5,
        reduction="none",
    )
    check_equal(padded, alone, logits, links)


def test_warns_of_links_that_are_no_log_probabilities() -> None:
    logits, links, target = example(2, 4, 3)
    real = torch.tensor([[True, True, True, False]] * 2)
    for wrong in (links.detach().exp(), torch.randn(2, 4, 4) + 9):
        with pytest.warns(UserWarning, match="are above 0, so they are no log-probabilities"):
            oaxe.dag_loss(logits, wrong, target)
    unused = links.detach().clone()
    unused[:, 3], unused[:, :, 3] = torch.inf, 5.0  # of a vertex that takes no part
    unused[:, 1, 0] = 5.0  # back
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oaxe.dag_loss(logits, links, target)
        oaxe.dag_loss(logits, unused, target, logit_mask=real)


def test_probabilities_of_all_outputs_add_up_to_one() -> None:
    logits, links, _ = example(1, 5, 0)
    outputs = [list(y) for n in range(1, 6) for y in product(range(VOCAB), repeat=n)]
    target = torch.tensor([y + [-100] * (5 - len(y)) for y in outputs])
    many = len(outputs)
    losses = oaxe.dag_loss(
        logits.expand(many, -1, -1), links.expand(many, -1, -1), target, reduction="none"
    )
    assert losses.neg().exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_links_to_the_next_vertex_alone_are_plain_cross_entropy() -> None:
    logits, _, target = example(3, 5, 5)
    links = torch.full((3, 5, 5), -torch.inf, dtype=torch.float64)
    links[:, torch.arange(4), torch.arange(1, 5)] = 0
    links.requires_grad_()
    loss = oaxe.dag_loss(logits, links, target)
    torch.testing.assert_close(loss, oaxe.xe_loss(logits, target))
    ours, of_links = gradients(loss, logits, links)
    torch.testing.assert_close(ours, gradients(oaxe.xe_loss(logits, target), logits)[0])
    assert of_links.isfinite().all()
    assert oaxe.dag_best_path(logits, links, target).tolist() == [list(range(5))] * 3


def test_loss_is_at_most_that_of_the_best_path() -> None:
    logits, links, target = example(8, 12, 5)
    losses = oaxe.dag_loss(logits, links, target, reduction="none")
    paths = oaxe.dag_best_path(logits, links, target)
    for b, path in enumerate(paths):
        assert path[0] == 0
        assert path[-1] == 11
        assert (path.diff() > 0).all()
        (score,) = scores_of(logits[b], links[b], target[b], [path.tolist()])
        assert losses[b] <= -score


def test_impossible_targets_and_finite_gradients() -> None:
    logits, links, target = example(4, 4, 3)
    closed = links.detach().clone()
    closed[1, :, 3] = -torch.inf  # no way to the last vertex
    closed[2, 0, 1] = -torch.inf  # one way less
    closed.requires_grad_()
    said = logits.detach().clone()
    said[3, 0, target[3, 0]] = -torch.inf  # the first word cannot be said
    said.requires_grad_()
    strict = oaxe.dag_loss(said, closed, target, reduction="none")
    assert strict.isfinite().tolist() == [True, False, True, False]
    assert strict[1] == strict[3] == torch.inf
    losses = oaxe.dag_loss(said, closed, target, zero_infinity=True, reduction="none")
    assert losses.tolist() == [strict[0], 0, strict[2], 0]
    mean = oaxe.dag_loss(said, closed, target, zero_infinity=True)
    torch.testing.assert_close(mean, losses.sum() / 12)
    for value in (strict, losses):
        of_logits, of_links = gradients(value.sum(), said, closed)
        assert of_logits.isfinite().all()
        assert of_links.isfinite().all()
        assert (of_links[1] == 0).all()
        assert (of_logits[3] == 0).all()
    assert oaxe.dag_best_path(said, closed, target)[1::2].tolist() == [[-1] * 3] * 2


@pytest.mark.parametrize("far", [100.0, 2_000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_improbable_paths_do_not_vanish(far: float, dtype: torch.dtype) -> None:
    """The only path that gets to the end is e^-far times as likely as others on their way."""
    logits, links = (
        torch.zeros(1, 4, 2, dtype=dtype),
        torch.full((1, 4, 4), -torch.inf, dtype=dtype),
    )
    links[0, 0, 1], links[0, 0, 2], links[0, 2, 3] = 0, -far, 0
    loss = oaxe.dag_loss(logits, links, torch.tensor([[0, 1, 0]]), reduction="sum")
    assert loss.item() == pytest.approx(far + 3 * torch.tensor(2.0).log().item(), rel=1e-6)


@given(seed=st.integers(0, 10_000))
def test_never_negative(seed: int) -> None:
    """The target is all but certain on every path: they may add up to 1.0000001."""
    torch.manual_seed(seed)
    target = torch.zeros(64, 6, dtype=torch.long)
    logits = torch.randn(64, 6, VOCAB) + 20 * F.one_hot(torch.zeros(64, 6).long(), VOCAB)
    links = torch.full((64, 6, 6), -torch.inf)
    links[:, torch.arange(5), torch.arange(1, 6)] = 0
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        losses = oaxe.dag_loss(logits.to(dtype), links.to(dtype), target, reduction="none")
        assert (losses >= 0).all()


def test_reductions() -> None:
    logits, links, target = example(3, 6, 3)
    target[0, 2:] = -100
    each = oaxe.dag_loss(logits, links, target, reduction="none")
    assert each.shape == (3,)
    torch.testing.assert_close(oaxe.dag_loss(logits, links, target, reduction="sum"), each.sum())
    torch.testing.assert_close(oaxe.dag_loss(logits, links, target), each.sum() / 8)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (2, 1, 1)])
def test_empty_batches_and_sentences(shape: tuple[int, int, int]) -> None:
    logits, links, target = example(*shape)
    losses = oaxe.dag_loss(logits, links, target, reduction="none")
    assert losses.shape == shape[:1]
    impossible = shape == (2, 0, 3)
    assert losses.isfinite().all() or impossible
    if shape[2] == 0:
        assert losses.tolist() == [0, 0]
    if impossible:
        assert losses.tolist() == [torch.inf, torch.inf]
    of_logits, of_links = gradients(losses.sum(), logits, links)
    assert of_logits.shape == logits.shape
    assert of_links.shape == links.shape
    path = oaxe.dag_best_path(logits, links, target)
    assert path.shape == target.shape
    assert (path == (0 if shape == (2, 1, 1) else -1)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, links, target = example(3, 7, 3)
    half = [x.detach().to(dtype).requires_grad_() for x in (logits, links)]
    ours = oaxe.dag_loss(half[0], half[1], target)
    assert ours.dtype == torch.float32
    exact = [x.detach().double() for x in half]
    expected = oaxe.dag_loss(exact[0], exact[1], target)
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)
    assert [x.dtype for x in gradients(ours, *half)] == [dtype, dtype]
    mixed = oaxe.dag_loss(exact[0], half[1], target)
    assert mixed.dtype == torch.float64
    torch.testing.assert_close(mixed, expected)


def test_gradient_by_finite_differences() -> None:
    logits, links, target = example(3, 5, 3)
    target[2, 2] = -100
    mask = torch.arange(5) < torch.tensor([[5], [4], [5]])
    open_links = (torch.randn_like(links) - 5).requires_grad_()

    def loss(logits: Tensor, links: Tensor) -> Tensor:
        return oaxe.dag_loss(logits, links, target, logit_mask=mask, reduction="none")

    assert torch.autograd.gradcheck(loss, (logits, open_links))


def test_second_derivative_is_refused() -> None:
    logits, links, target = example(1, 5, 2)
    loss = oaxe.dag_loss(logits, links, target)
    first, _ = torch.autograd.grad(loss, (logits, links), create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_a_graph_break(backend: str) -> None:
    logits, links, target = example(3, 7, 3)

    def step(logits: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
        given = 2 * logits, links, target
        return oaxe.dag_loss(*given), oaxe.dag_best_path(*given)

    compiled, expected = torch.compile(step, fullgraph=True, backend=backend), step(logits, links)
    loss, path = compiled(logits, links)
    assert path.equal(expected[1])
    check_equal(loss, expected[0], logits, links)


def test_operators_are_registered_correctly() -> None:
    emissions = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    links = torch.randn(3, 6, 6, dtype=torch.float64, requires_grad=True)
    given: Any = emissions, links, torch.tensor([4, 2, 0]), torch.tensor([6, 5, 3])
    torch.library.opcheck(_sum, given)
    torch.library.opcheck(_best_path, given)


LOGITS, LINKS, TARGET = torch.zeros(2, 3, 5), torch.zeros(2, 3, 3), torch.zeros(2, 2).long()


@pytest.mark.parametrize(
    ("links", "target", "options", "message"),
    [
        (LINKS[:, :2], TARGET, {}, r"links must be .* \(2, 3, 3\); got .*\(2, 2, 3\)"),
        (LINKS.long(), TARGET, {}, "links must be floating point"),
        (LINKS, TARGET + 5, {}, "outside the vocabulary 0..4"),
        (LINKS, TARGET, {"logit_mask": torch.ones(2, 3)}, "logit_mask must be bool"),
        (
            LINKS,
            TARGET,
            {"logit_mask": torch.tensor([[True, True, True], [True, False, True]])},
            r"True for the first vertices .* rows \[1\]",
        ),
        (LINKS, TARGET, {"reduction": "max"}, "reduction"),
    ],
)
def test_rejects_wrong_arguments(
    links: Tensor, target: Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.dag_loss(LOGITS, links, target, **options)
