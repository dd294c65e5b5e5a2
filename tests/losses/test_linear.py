"""The losses on hidden states against the same losses on logits: values, gradients, memory."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import oaxe
from oaxe.losses import NotFiniteError, linear_softmax, overlap
from oaxe.losses.arguments import not_negative

VOCAB, DIM, BLANK = 11, 6, 10
WEIGHT = torch.linspace(0, 2, VOCAB, dtype=torch.float64)  # of the classes
Loss = Callable[..., Any]


def links_between(positions: Tensor) -> Tensor:
    """Log-probabilities of later vertices, the same for the same shape."""
    batch, vertices = positions.shape[:2]
    scores = torch.arange(batch * vertices**2, dtype=torch.float32).sin()
    later = torch.ones(vertices, vertices, dtype=torch.bool).triu(1)
    scores = scores.view(batch, vertices, vertices).masked_fill(~later, -torch.inf)
    return scores.log_softmax(-1).to(torch.promote_types(positions.dtype, torch.float32))


def dag(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    return oaxe.dag_loss(logits, links_between(logits), target, **options)


def linear_dag(hidden: Tensor, embedding: Tensor, target: Tensor, **options: Any) -> Tensor:
    return oaxe.linear_dag_loss(hidden, embedding, links_between(hidden), target, **options)


def dag_ngrams(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    return oaxe.dag_ngram_loss(logits, links_between(logits), target, **options)


def linear_dag_ngrams(hidden: Tensor, embedding: Tensor, target: Tensor, **options: Any) -> Tensor:
    return oaxe.linear_dag_ngram_loss(hidden, embedding, links_between(hidden), target, **options)


PAIRS: list[tuple[Loss, Loss, dict[str, Any]]] = [
    (oaxe.linear_xe_loss, oaxe.xe_loss, {}),
    (oaxe.linear_xe_loss, oaxe.xe_loss, {"label_smoothing": 0.1}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {"truncation": 0.1}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {"truncation": 0.1, "label_smoothing": 0.1}),
    (oaxe.linear_xe_loss, oaxe.xe_loss, {"weight": WEIGHT}),
    (oaxe.linear_xe_loss, oaxe.xe_loss, {"weight": WEIGHT, "label_smoothing": 0.1}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {"weight": WEIGHT, "truncation": 0.1}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {"weight": WEIGHT, "label_smoothing": 0.1}),
    (oaxe.linear_axe_loss, oaxe.axe_loss, {"blank": BLANK}),
    (oaxe.linear_axe_loss, oaxe.axe_loss, {"blank": BLANK, "delta": 2.0}),
    (oaxe.linear_ctc_loss, oaxe.ctc_loss, {"blank": BLANK}),
    (oaxe.linear_bag_of_ngrams_loss, oaxe.bag_of_ngrams_loss, {"n": 2}),
    (linear_dag, dag, {"zero_infinity": True}),
    (oaxe.linear_ctc_ngram_loss, oaxe.ctc_ngram_loss, {"blank": BLANK}),
    (linear_dag_ngrams, dag_ngrams, {"n": 2}),
    (oaxe.linear_coco_loss, oaxe.coco_loss, {"blank": BLANK}),
    (oaxe.linear_ngram_oaxe_loss, oaxe.ngram_oaxe_loss, {"truncation": 0.1}),
    (oaxe.linear_ngram_oaxe_loss, oaxe.ngram_oaxe_loss, {"n": 3, "label_smoothing": 0.1}),
]


@pytest.fixture(autouse=True, scope="module")
def _three_tokens_a_chunk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(linear_softmax.CHUNK_BYTES, "cpu", 3 * VOCAB * 8)
        yield


def example(dtype: torch.dtype, with_bias: bool = True) -> tuple[list[Tensor], Tensor]:
    hidden, embedding = torch.randn(4, 5, DIM, dtype=dtype), torch.randn(VOCAB, DIM, dtype=dtype)
    inputs = [hidden, embedding, torch.randn(VOCAB, dtype=dtype)][: 3 if with_bias else 2]
    target = torch.randint(BLANK, (4, 5)).masked_fill(torch.rand(4, 5) < 0.3, -100)
    return [x.requires_grad_() for x in inputs], target


def linear(loss: Loss, inputs: list[Tensor], target: Tensor, **options: Any) -> Any:
    hidden, embedding, *bias = inputs
    return loss(hidden, embedding, target, linear_bias=bias[0] if bias else None, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("ours", "plain", "options"), PAIRS)
@pytest.mark.parametrize(
    ("dtype", "with_bias"), list(product([torch.float64, torch.float32], [True, False]))
)
def test_equal_to_the_loss_on_logits(
    ours: Loss,
    plain: Loss,
    options: dict[str, Any],
    reduction: str,
    dtype: torch.dtype,
    with_bias: bool,
) -> None:
    inputs, target = example(dtype, with_bias)
    options = options | {"reduction": reduction}
    value = linear(ours, inputs, target, **options)
    expected = plain(F.linear(*inputs), target, **options)
    torch.testing.assert_close(value, expected)
    factor = torch.randn_like(expected)
    gradients = torch.autograd.grad((value * factor).sum(), inputs)
    wanted = torch.autograd.grad((expected * factor).sum(), inputs)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch is older than 2.13")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("ours", "plain", "options"), [pair for pair in PAIRS if pair[1] is oaxe.xe_loss]
)
@pytest.mark.parametrize("with_bias", [True, False])
def test_xe_equals_linear_cross_entropy_of_torch(
    ours: Loss, plain: Loss, options: dict[str, Any], reduction: str, with_bias: bool
) -> None:
    inputs, target = example(torch.float64, with_bias)
    options = options | {"reduction": reduction}
    value = linear(oaxe.linear_xe_loss, inputs, target, **options)
    flat = [inputs[0].flatten(0, 1), *inputs[1:]]
    expected = linear(F.linear_cross_entropy, flat, target.flatten(), **options)  # type: ignore[attr-defined,unused-ignore]
    torch.testing.assert_close(value.flatten(), expected.flatten())
    for one, other in zip(
        torch.autograd.grad(value.sum(), inputs),
        torch.autograd.grad(expected.sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("options", [{}, {"truncation": 0.1}, {"weight": WEIGHT}])
def test_order_equals_that_of_the_loss_on_logits(options: dict[str, Any], reduction: str) -> None:
    inputs, target = example(torch.float64)
    options = options | {"reduction": reduction, "return_order": True}
    loss, order = linear(oaxe.linear_oaxe_loss, inputs, target, **options)
    expected_loss, expected = oaxe.oaxe_loss(F.linear(*inputs), target, **options)
    torch.testing.assert_close(loss, expected_loss)
    for one, other in zip(order, expected, strict=True):
        assert torch.equal(one, other)
    assert bool(order.truncated.any()) == ("truncation" in options)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_certain_words_are_not_truncated(reduction: Any) -> None:
    """Their loss is exactly 0, as is that of a truncated word."""
    hidden = 1000 * torch.eye(3).unsqueeze(0)
    loss, order = oaxe.linear_oaxe_loss(
        hidden, torch.eye(3), torch.tensor([[2, 0, 1]]),
        truncation=0.5, reduction=reduction, return_order=True,
    )  # fmt: skip
    assert loss.sum() == 0
    assert not order.truncated.any()


@pytest.mark.parametrize(
    ("ours", "plain"),
    [
        (oaxe.linear_axe_loss, oaxe.axe_loss),
        (oaxe.linear_ctc_loss, oaxe.ctc_loss),
        (oaxe.linear_ctc_ngram_loss, oaxe.ctc_ngram_loss),
    ],
)
def test_with_a_mask_of_predictions(ours: Loss, plain: Loss) -> None:
    inputs, target = example(torch.float64)
    options: dict[str, Any] = {
        "blank": BLANK,
        "logit_mask": torch.rand(4, 5) < 0.7,
        "reduction": "none",
    }
    value = linear(ours, inputs, target[:, :3], **options)
    torch.testing.assert_close(value, plain(F.linear(*inputs), target[:, :3], **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("ours", "plain", "options"), PAIRS)
def test_half_precision_is_no_further_off_than_the_plain_loss(
    ours: Loss, plain: Loss, options: dict[str, Any], dtype: torch.dtype
) -> None:
    inputs, target = example(torch.float64)
    half = [x.detach().to(dtype).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in half]
    expected = plain(F.linear(*exact), target, **options)
    theirs = plain(F.linear(*half), target, **options)
    value = linear(ours, half, target, **options)
    assert value.dtype == torch.float32
    assert (value - expected).abs() <= (theirs - expected).abs() + 1e-2
    wanted = torch.autograd.grad(expected, exact)
    for mine, plainly, right in zip(
        torch.autograd.grad(value, half), torch.autograd.grad(theirs, half), wanted, strict=True
    ):
        assert mine.dtype == dtype
        assert (mine - right).norm() <= 1.5 * (plainly - right).norm() + 1e-2 * right.norm()


def confident(
    seed: int, scale: float, dtype: torch.dtype, device: str = "cpu"
) -> tuple[list[Tensor], Tensor]:
    """Hidden states that point to the right words, the more so the larger the scale."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB, DIM, generator=generator)
    target = torch.randint(BLANK, (4, 5), generator=generator)
    noise = torch.randn(4, 5, DIM, generator=generator)
    inputs = scale * embedding[target] + noise, embedding, torch.randn(VOCAB, generator=generator)
    return [x.to(device, dtype).requires_grad_() for x in inputs], target.to(device)


PRECISIONS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.0, 0.3, 1.0, 3.0, 10.0, 100.0]),
    dtype=st.sampled_from(PRECISIONS),
    autocast=st.booleans(),
)
def test_no_loss_is_negative(seed: int, scale: float, dtype: torch.dtype, autocast: bool) -> None:
    inputs, target = confident(seed, scale, dtype)
    for ours, plain, options in PAIRS:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and dtype == torch.float32):
            losses = [linear(ours, inputs, target, reduction="none", **options)]
            losses.append(linear(ours, inputs, target, reduction="sum", **options))
            losses.append(plain(F.linear(*inputs), target, reduction="none", **options))
        assert all((loss >= 0).all() for loss in losses)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.3, 1.0, 10.0])
def test_token_losses_do_not_round_logits_to_half_precision(
    dtype: torch.dtype, scale: float
) -> None:
    inputs, target = confident(0, scale, dtype)
    exact = [x.detach().double() for x in inputs]
    for ours, plain, options in PAIRS:
        found = linear(ours, inputs, target, reduction="none", **options)
        expected = plain(F.linear(*exact), target, reduction="none", **options).float()
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_clamped_losses_keep_their_gradient() -> None:
    """A loss that rounding made negative is 0, and still the embedding learns from it."""
    cost = torch.tensor([-1e-7, 0.0, 2.0, torch.inf, torch.nan], requires_grad=True)
    clamped = not_negative(cost)
    torch.testing.assert_close(
        clamped, torch.tensor([0.0, 0.0, 2.0, torch.inf, torch.nan]), equal_nan=True, atol=0, rtol=0
    )
    assert torch.autograd.grad(clamped.sum(), cost)[0].tolist() == [1.0] * 5


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("truncation", [0.0, 0.1])
def test_nan_is_not_truncated_away(reduction: Any, truncation: float) -> None:
    """NaN in a word that is not in the target: the matching does not see it."""
    inputs, target = example(torch.float32)
    target = target.masked_fill(target == 4, 5)
    embedding = inputs[1].detach().clone()
    embedding[4] = torch.nan
    options: dict[str, Any] = {"truncation": truncation, "reduction": reduction}
    loss = oaxe.linear_oaxe_loss(inputs[0], embedding, target, **options)
    expected = oaxe.oaxe_loss(F.linear(inputs[0], embedding), target, **options)
    torch.testing.assert_close(loss, expected, equal_nan=True)
    assert loss.isnan().any()


@pytest.mark.parametrize("with_bias", [True, False])
def test_logsumexp(with_bias: bool) -> None:
    inputs, _ = example(torch.float64, with_bias)
    value, expected = oaxe.linear_logsumexp(*inputs), F.linear(*inputs).logsumexp(-1)
    torch.testing.assert_close(value, expected)
    assert torch.autograd.gradcheck(oaxe.linear_logsumexp, inputs)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most elements of any tensor made, inside our operators too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self.operators = {
            "oaxe::linear_logsumexp": linear_softmax._logsumexp,
            "oaxe::linear_logsumexp_backward": linear_softmax._logsumexp_backward,
            "oaxe::linear_cross_entropy": linear_softmax._cross_entropy,
            "oaxe::linear_overlap": overlap._overlap,
            "oaxe::linear_overlap_backward": overlap._overlap_backward,
        }
        self.entered: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name()
        if name in self.operators:
            self.entered.add(name)
            with self:
                result = self.operators[name]._init_fn(*args, **kwargs or {})
        else:
            result = func(*args, **kwargs or {})
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.itemsize)
        return result


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("ours", "plain", "options"), PAIRS)
def test_logits_are_never_stored_whole(
    ours: Loss, plain: Loss, options: dict[str, Any], reduction: str, monkeypatch: Any
) -> None:
    batch, length, vocab, dim = 8, 10, 2_000, 4
    monkeypatch.setitem(linear_softmax.CHUNK_BYTES, "cpu", 10 * vocab * 4)
    hidden = torch.randn(batch, length, dim, requires_grad=True)
    embedding = torch.randn(vocab, dim, requires_grad=True)
    target = torch.randint(vocab - 1, (batch, length))
    if "weight" in options:
        options = options | {"weight": torch.rand(vocab)}
    with Largest() as seen:
        loss = ours(hidden, embedding, target, reduction=reduction, **options)
        torch.autograd.grad(loss.sum(), [hidden, embedding])
    assert seen.entered
    assert 10 * vocab <= seen.elements <= batch * length * vocab // 4
    with Largest() as seen:
        plain(F.linear(hidden, embedding), target, **options)
    assert seen.elements == batch * length * vocab  # so it would have been noticed


@pytest.mark.parametrize("ours", [oaxe.linear_xe_loss, oaxe.linear_oaxe_loss])
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 1)])
def test_empty_batches_and_sentences(ours: Loss, shape: tuple[int, int]) -> None:
    hidden = torch.randn(*shape, DIM, requires_grad=True)
    target = torch.zeros(shape, dtype=torch.long)
    embedding = torch.randn(VOCAB, DIM)
    for reduction in ("sum", "none", "mean"):
        value = ours(hidden, embedding, target, reduction=reduction)
        expected = oaxe.xe_loss(F.linear(hidden, embedding), target, reduction=reduction)
        torch.testing.assert_close(value, expected, equal_nan=True)
    total = ours(hidden, embedding, target, reduction="sum")
    assert torch.autograd.grad(total, hidden)[0].shape == hidden.shape


def test_under_autocast() -> None:
    inputs, target = example(torch.float32)
    for ours, plain, options in PAIRS:
        with torch.autocast("cpu", torch.bfloat16):
            value = linear(ours, inputs, target, **options)
            expected = plain(F.linear(*inputs), target, **options)
        torch.testing.assert_close(value, expected, atol=0.02, rtol=0.02)
        assert all(x.dtype == torch.float32 for x in torch.autograd.grad(value, inputs))


def test_no_gradient_is_computed_where_none_is_wanted() -> None:
    inputs, target = example(torch.float64)
    with torch.no_grad():
        value = linear(oaxe.linear_xe_loss, inputs, target)
    assert not value.requires_grad
    torch.testing.assert_close(value, oaxe.xe_loss(F.linear(*inputs), target))


@pytest.mark.parametrize(("ours", "plain", "options"), PAIRS)
def test_compiled_without_a_graph_break(ours: Loss, plain: Loss, options: dict[str, Any]) -> None:
    inputs, target = example(torch.float64)

    def step(*inputs: Tensor) -> list[Tensor]:
        reductions = ("mean", "none")
        return [linear(ours, list(inputs), target, reduction=r, **options) for r in reductions]

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*inputs)
    expected = step(*inputs)
    torch.testing.assert_close(compiled, expected)
    factors = [torch.randn_like(loss) for loss in expected]
    gradients = torch.autograd.grad(compiled, inputs, factors)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs, factors))


def test_operators_are_registered_correctly() -> None:
    inputs, target = example(torch.float32)
    hidden = inputs[0].detach().flatten(0, 1).requires_grad_()
    words, mask = target.clamp(min=0).flatten(), (target >= 0).flatten()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for bias, weight in ((inputs[2], None), (None, WEIGHT.float())):
        given = hidden, inputs[1], bias
        torch.library.opcheck(linear_softmax._logsumexp, given)
        for differentiate in (True, False):
            options = words, mask, weight, 0.1, 0.05, differentiate
            torch.library.opcheck(
                linear_softmax._cross_entropy, (*given, *options), test_utils=tests
            )


GOOD = torch.zeros(2, 3, DIM), torch.zeros(VOCAB, DIM), torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("hidden", "embedding", "target", "options", "message"),
    [
        (GOOD[0][0], GOOD[1], GOOD[2], {}, r"input must be \(batch, length, dim\)"),
        (GOOD[0], GOOD[1].T, GOOD[2], {}, r"linear_weight \(vocab, dim\).*\(6, 11\)"),
        (GOOD[0], GOOD[1].double(), GOOD[2], {}, "float32, linear_weight torch.float64"),
        (GOOD[0], GOOD[1], GOOD[2], {"linear_bias": torch.zeros(3)}, r"linear_bias.* \(11,\)"),
        (GOOD[0], GOOD[1], GOOD[2], {"weight": torch.zeros(3)}, r"weight .*\(11,\), got .*\(3,\)"),
        (GOOD[0], GOOD[1], GOOD[2] + VOCAB, {}, "outside the vocabulary 0..10"),
        (GOOD[0], GOOD[1], GOOD[2][:, :2], {}, "length 3.*target 2"),
        (GOOD[0], GOOD[1], GOOD[2], {"truncation": 1.0}, "truncation"),
        (GOOD[0], GOOD[1], GOOD[2], {"label_smoothing": -0.1}, "label_smoothing"),
        (GOOD[0], GOOD[1], GOOD[2], {"reduction": "max"}, "reduction"),
    ],
)
def test_rejects_wrong_arguments(
    hidden: Tensor, embedding: Tensor, target: Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.linear_oaxe_loss(hidden, embedding, target, **options)


def test_trains_like_the_plain_loss() -> None:
    """The same small model, step by step: both ways follow the same loss curve."""
    target = torch.randint(VOCAB, (8, 5))
    start = torch.randn(8, 5, DIM, dtype=torch.float64), torch.randn(VOCAB, DIM).double()
    curves = []
    for linear in (False, True):
        parameters = [x.clone().requires_grad_() for x in start]
        optimizer = torch.optim.Adam(parameters, lr=0.05)
        curve = []
        for _ in range(60):
            optimizer.zero_grad()
            options: dict[str, Any] = {"label_smoothing": 0.1, "truncation": 0.01}
            if linear:
                value: Tensor = oaxe.linear_oaxe_loss(
                    parameters[0], parameters[1], target, **options
                )
            else:
                value = oaxe.oaxe_loss(F.linear(*parameters), target, **options)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            curve.append(value.item())
        curves.append(curve)
    assert curves[0][-1] < 0.6 * curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("ours", "plain", "options"), PAIRS)
def test_a_capacity_changes_nothing_but_the_work(
    ours: Loss, plain: Loss, options: dict[str, Any], reduction: str
) -> None:
    torch.manual_seed(5)
    inputs, target = example(torch.float64)
    mask = target != -100
    if "blank" in options or ours is oaxe.linear_bag_of_ngrams_loss:
        options = options | {"logit_mask": mask}
    logits = F.linear(*inputs)
    expected = plain(logits, target, reduction=reduction, **options)
    wanted = torch.autograd.grad(expected.sum(), inputs)
    taking_part = mask.numel() if "dag" in ours.__name__ else int(mask.sum())
    for capacity in (taking_part, taking_part + 1, 40):
        found = linear(ours, inputs, target, reduction=reduction, capacity=capacity, **options)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), inputs), wanted)
    try:
        too_small = linear(
            ours, inputs, target, reduction=reduction, capacity=taking_part - 1, **options
        )
    except NotFiniteError:  # OaXE matches on the log-sum-exp if there are class weights
        assert ours is not oaxe.linear_oaxe_loss or "weight" in options
        assert "oaxe" in ours.__name__ or ours is oaxe.linear_coco_loss
    else:
        assert too_small.sum().isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_best_paths_are_those_of_the_logits(dtype: torch.dtype) -> None:
    inputs, target = example(dtype)
    hidden, embedding, bias = inputs
    logits, links = F.linear(*inputs), links_between(hidden)
    mask = torch.arange(5) < torch.tensor([5, 3, 4, 5]).unsqueeze(1)
    given: dict[str, Any] = {"linear_bias": bias, "logit_mask": mask}
    for targets in (target, target[:, :3]):
        labels = oaxe.linear_ctc_best_path(hidden, embedding, targets, blank=BLANK, **given)
        assert labels.equal(oaxe.ctc_best_path(logits, targets, blank=BLANK, logit_mask=mask))
        expected = oaxe.dag_best_path(logits, links, targets, logit_mask=mask)
        assert (expected >= 0).any()
        for capacity in (None, 17, 19):
            path = oaxe.linear_dag_best_path(
                hidden, embedding, links, targets, capacity=capacity, **given
            )
            assert path.equal(expected)
