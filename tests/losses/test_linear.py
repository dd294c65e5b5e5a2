"""The losses on hidden states against the same losses on logits: values, gradients, memory."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import oaxe
from oaxe.losses import linear_softmax

VOCAB, DIM, BLANK = 11, 6, 10
Loss = Callable[..., Tensor]
PAIRS: list[tuple[Loss, Loss, dict[str, Any]]] = [
    (oaxe.linear_xe_loss, oaxe.xe_loss, {}),
    (oaxe.linear_xe_loss, oaxe.xe_loss, {"label_smoothing": 0.1}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {"truncation": 0.1}),
    (oaxe.linear_oaxe_loss, oaxe.oaxe_loss, {"truncation": 0.1, "label_smoothing": 0.1}),
    (oaxe.linear_axe_loss, oaxe.axe_loss, {"blank": BLANK}),
    (oaxe.linear_axe_loss, oaxe.axe_loss, {"blank": BLANK, "delta": 2.0}),
]


@pytest.fixture(autouse=True)
def _three_tokens_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linear_softmax.CHUNK_BYTES, "cpu", 3 * VOCAB * 8)


def example(dtype: torch.dtype, with_bias: bool = True) -> tuple[list[Tensor], Tensor]:
    hidden, weight = torch.randn(4, 5, DIM, dtype=dtype), torch.randn(VOCAB, DIM, dtype=dtype)
    inputs = [hidden, weight, torch.randn(VOCAB, dtype=dtype)][: 3 if with_bias else 2]
    target = torch.randint(BLANK, (4, 5)).masked_fill(torch.rand(4, 5) < 0.3, -100)
    return [x.requires_grad_() for x in inputs], target


def linear(loss: Loss, inputs: list[Tensor], target: Tensor, **options: Any) -> Tensor:
    hidden, weight, *bias = inputs
    return loss(hidden, weight, target, bias=bias[0] if bias else None, **options)


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
    weight = torch.randn_like(expected)
    gradients = torch.autograd.grad((value * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_axe_with_a_mask_of_predictions() -> None:
    inputs, target = example(torch.float64)
    options: dict[str, Any] = {
        "blank": BLANK,
        "logit_mask": torch.rand(4, 5) < 0.7,
        "reduction": "none",
    }
    value = linear(oaxe.linear_axe_loss, inputs, target[:, :3], **options)
    torch.testing.assert_close(value, oaxe.axe_loss(F.linear(*inputs), target[:, :3], **options))


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
def test_logits_are_never_whole(
    ours: Loss, plain: Loss, options: dict[str, Any], reduction: str, monkeypatch: Any
) -> None:
    batch, length, vocab, dim = 8, 10, 2_000, 4
    monkeypatch.setitem(linear_softmax.CHUNK_BYTES, "cpu", 10 * vocab * 4)
    hidden = torch.randn(batch, length, dim, requires_grad=True)
    weight = torch.randn(vocab, dim, requires_grad=True)
    target = torch.randint(vocab - 1, (batch, length))
    with Largest() as seen:
        loss = ours(hidden, weight, target, reduction=reduction, **options)
        torch.autograd.grad(loss.sum(), [hidden, weight])
    assert seen.entered
    assert 10 * vocab <= seen.elements <= batch * length * vocab // 4
    with Largest() as seen:
        plain(F.linear(hidden, weight), target, **options)
    assert seen.elements == batch * length * vocab  # so it would have been noticed


@pytest.mark.parametrize("ours", [oaxe.linear_xe_loss, oaxe.linear_oaxe_loss])
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 1)])
def test_empty_batches_and_sentences(ours: Loss, shape: tuple[int, int]) -> None:
    hidden = torch.randn(*shape, DIM, requires_grad=True)
    target = torch.zeros(shape, dtype=torch.long)
    weight = torch.randn(VOCAB, DIM)
    for reduction in ("sum", "none", "mean"):
        value = ours(hidden, weight, target, reduction=reduction)
        expected = oaxe.xe_loss(F.linear(hidden, weight), target, reduction=reduction)
        torch.testing.assert_close(value, expected, equal_nan=True)
    total = ours(hidden, weight, target, reduction="sum")
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
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled_without_a_graph_break(
    ours: Loss, plain: Loss, options: dict[str, Any], reduction: str
) -> None:
    inputs, target = example(torch.float64)

    def step(*inputs: Tensor) -> Tensor:
        return linear(ours, list(inputs), target, reduction=reduction, **options).sum()

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(*inputs)
    expected = step(*inputs)
    torch.testing.assert_close(compiled, expected)
    for one, other in zip(
        torch.autograd.grad(compiled, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_operators_are_registered_correctly() -> None:
    inputs, target = example(torch.float32)
    hidden = inputs[0].detach().flatten(0, 1).requires_grad_()
    words, counts = target.clamp(min=0).flatten(), (target >= 0).flatten()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for bias in (inputs[2], None):
        given = hidden, inputs[1], bias
        torch.library.opcheck(linear_softmax._logsumexp, given)
        for differentiate in (True, False):
            options = words, counts, 0.1, 0.05, differentiate
            torch.library.opcheck(
                linear_softmax._cross_entropy, (*given, *options), test_utils=tests
            )


GOOD = torch.zeros(2, 3, DIM), torch.zeros(VOCAB, DIM), torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("hidden", "weight", "target", "options", "message"),
    [
        (GOOD[0][0], GOOD[1], GOOD[2], {}, r"\(batch, length, dim\)"),
        (GOOD[0], GOOD[1].T, GOOD[2], {}, r"weight \(vocab, dim\).*\(6, 11\)"),
        (GOOD[0], GOOD[1].double(), GOOD[2], {}, "float32, weight torch.float64"),
        (GOOD[0], GOOD[1], GOOD[2], {"bias": torch.zeros(3)}, r"bias must be of shape \(11,\)"),
        (GOOD[0], GOOD[1], GOOD[2] + VOCAB, {}, "outside the vocabulary 0..10"),
        (GOOD[0], GOOD[1], GOOD[2][:, :2], {}, "length 3.*target 2"),
        (GOOD[0], GOOD[1], GOOD[2], {"truncation": 1.0}, "truncation"),
        (GOOD[0], GOOD[1], GOOD[2], {"label_smoothing": -0.1}, "label_smoothing"),
        (GOOD[0], GOOD[1], GOOD[2], {"reduction": "max"}, "reduction"),
    ],
)
def test_clear_errors(
    hidden: Tensor, weight: Tensor, target: Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.linear_oaxe_loss(hidden, weight, target, **options)


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
                value = oaxe.linear_oaxe_loss(parameters[0], parameters[1], target, **options)
            else:
                value = oaxe.oaxe_loss(F.linear(*parameters), target, **options)
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            curve.append(value.item())
        curves.append(curve)
    assert curves[0][-1] < 0.6 * curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=1e-6)
