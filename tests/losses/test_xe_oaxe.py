"""XE against F.cross_entropy, OaXE against the best of all permutations: values and gradients."""

import warnings
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import oaxe
from tests.oracles import oaxe_by_brute_force

VOCAB = 7
MASKS = ["none", "right padding", "left padding", "scattered"]
GRID = list(product(MASKS, [-100, 3], [0.0, 0.1]))
# Of the classes; far apart, so that they change the best order.
WEIGHT = torch.tensor([0.0, 0.1, 0.3, 1.0, 2.0, 5.0, 20.0], dtype=torch.float64)
WEIGHTS = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])


def sentences(
    masking: str, ignore_index: int, batch: int = 4, length: int = 5, repeats: bool = True
) -> tuple[Tensor, Tensor]:
    """float64 logits and a target in which some words repeat and some are ignored."""
    logits = 2 * torch.randn(batch, length, VOCAB, dtype=torch.float64)
    words = [word for word in range(VOCAB) if word != ignore_index]
    target = torch.tensor(words)[torch.randint(len(words), (batch, length))]
    position = torch.arange(length).expand(batch, -1)
    shortfall = torch.arange(batch).unsqueeze(1) % length  # row b ignores b of its targets
    ignored = {
        "none": torch.zeros(batch, length, dtype=torch.bool),
        "right padding": position >= length - shortfall,
        "left padding": position < shortfall,
        "scattered": torch.rand(batch, length) < 0.4,
    }[masking]
    return logits, target.masked_fill(ignored, ignore_index)


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(loss, logits)
    return result


@WEIGHTS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("masking", "ignore_index", "smoothing"), GRID)
def test_xe_is_cross_entropy(
    masking: str, ignore_index: int, smoothing: float, reduction: str, weight: Tensor | None
) -> None:
    logits, target = sentences(masking, ignore_index)
    logits.requires_grad_()
    options: dict[str, Any] = {
        "weight": weight,
        "ignore_index": ignore_index,
        "label_smoothing": smoothing,
        "reduction": reduction,
    }
    ours = oaxe.xe_loss(logits, target, **options)
    torchs = F.cross_entropy(logits.flatten(0, 1), target.flatten(), **options)
    if reduction == "none":
        torchs = torchs.view_as(target)
    torch.testing.assert_close(ours, torchs)
    factor = torch.randn_like(ours)
    torch.testing.assert_close(
        gradient((ours * factor).sum(), logits), gradient((torchs * factor).sum(), logits)
    )


@WEIGHTS
@pytest.mark.parametrize("truncation", [0.0, 0.15])
@pytest.mark.parametrize(("masking", "ignore_index", "smoothing"), GRID)
def test_oaxe_is_the_best_permutation(
    masking: str, ignore_index: int, smoothing: float, truncation: float, weight: Tensor | None
) -> None:
    logits, target = sentences(masking, ignore_index)
    logits.requires_grad_()
    options: dict[str, Any] = {
        "weight": weight,
        "ignore_index": ignore_index,
        "label_smoothing": smoothing,
        "truncation": truncation,
    }
    expected = oaxe_by_brute_force(logits, target, **options)
    wanted = gradient(expected, logits)
    mask = target != ignore_index
    divisor = mask.sum() if weight is None else weight[target[mask]].sum()
    for reduction in ("sum", "mean", "none"):
        ours: Tensor = oaxe.oaxe_loss(logits, target, reduction=reduction, **options)
        if reduction == "none":
            assert ours.shape == target.shape
            assert (ours[~mask] == 0).all()
        scale = divisor if reduction == "mean" else 1
        torch.testing.assert_close(ours.sum(), expected / scale)
        torch.testing.assert_close(gradient(ours.sum(), logits), wanted / scale)


def test_class_weights_change_the_order() -> None:
    """Both words are likeliest at the first position; it goes to the one of greater weight."""
    logits = torch.tensor([[[0.5, 0.4, 0.1], [0.4, 0.2, 0.4]]]).log()
    target = torch.tensor([[0, 1]])
    for weight, order in (([1.0, 1.0, 1.0], [1, 0]), ([9.0, 1.0, 1.0], [0, 1])):
        assert oaxe.best_order(logits, target, weight=torch.tensor(weight)).tolist() == [order]
    assert oaxe.best_order(logits, target).tolist() == [[1, 0]]


@pytest.mark.parametrize("masking", MASKS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_returned_order(masking: str, reduction: Any) -> None:
    logits, target = sentences(masking, -100)
    options: dict[str, Any] = {"truncation": 0.15, "reduction": reduction}
    loss, order = oaxe.oaxe_loss(logits, target, return_order=True, **options)
    assert isinstance(order, oaxe.Order)
    assert torch.equal(loss, oaxe.oaxe_loss(logits, target, **options))
    assert torch.equal(order.target, oaxe.best_order(logits, target))
    assert order.positions.dtype == torch.int64
    assert torch.equal(order.target, target.gather(1, order.positions))
    ignored = target == -100
    assert (order.positions == torch.arange(5))[ignored].all()
    words = order.target.clamp(min=0).unsqueeze(2)
    probability = logits.softmax(-1).gather(2, words).squeeze(2)
    assert torch.equal(order.truncated, (probability <= 0.15) & ~ignored)
    assert order.truncated.any()


@pytest.mark.parametrize("loss", [oaxe.xe_loss, oaxe.oaxe_loss])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(loss: object, dtype: torch.dtype) -> None:
    assert callable(loss)
    logits, target = sentences("left padding", -100)
    half = logits.to(dtype).requires_grad_()
    full = half.detach().float().requires_grad_()
    for weight in (None, WEIGHT.to(dtype)):
        ours, expected = (loss(x, target, weight=weight) for x in (half, full))
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(gradient(ours, half), gradient(expected, full).to(dtype))


def test_under_autocast() -> None:
    logits, target = sentences("none", -100)
    hidden = torch.randn(4, 5, 8)
    weight = torch.randn(VOCAB, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        logits = hidden @ weight.T
        assert logits.dtype == torch.bfloat16
        loss = oaxe.oaxe_loss(logits, target)
    assert loss.dtype == torch.float32
    assert gradient(loss, weight).isfinite().all()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("loss", [oaxe.xe_loss, oaxe.oaxe_loss])
def test_compiled_without_a_graph_break(loss: object, backend: str) -> None:
    assert callable(loss)
    logits, target = sentences("right padding", -100)
    logits.requires_grad_()
    options = {"truncation": 0.1} if loss is oaxe.oaxe_loss else {}

    def step(logits: Tensor, target: Tensor) -> Tensor:
        result: Tensor = loss(2 * logits, target, label_smoothing=0.1, **options)
        return result

    compiled = torch.compile(step, fullgraph=True, backend=backend)(logits, target)
    expected = step(logits, target)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(gradient(compiled, logits), gradient(expected, logits))


@given(seed=st.integers(0, 10_000), length=st.integers(1, 6), batch=st.integers(1, 3))
def test_never_above_xe_and_same_for_any_target_order(seed: int, length: int, batch: int) -> None:
    torch.manual_seed(seed)
    logits, target = sentences("none", -100, batch, length)
    ours = oaxe.oaxe_loss(logits, target, reduction="none").sum(1)
    assert (ours <= oaxe.xe_loss(logits, target, reduction="none").sum(1) + 1e-9).all()
    shuffled = target.gather(1, torch.rand(batch, length).argsort(1))
    again = oaxe.oaxe_loss(logits, shuffled, reduction="none").sum(1)
    torch.testing.assert_close(ours, again)


@given(seed=st.integers(0, 10_000), left=st.integers(0, 3), right=st.integers(0, 3))
def test_padding_and_batch_mates_change_nothing(seed: int, left: int, right: int) -> None:
    torch.manual_seed(seed)
    logits, target = sentences("none", -100, batch=1)
    alone = oaxe.oaxe_loss(logits, target, truncation=0.05)
    padded = F.pad(target, (left, right), value=-100)
    others, other_targets = sentences("scattered", -100, length=5 + left + right)
    wide = F.pad(logits, (0, 0, left, right), value=9.0)
    batch = torch.cat([others, wide])
    losses = oaxe.oaxe_loss(
        batch, torch.cat([other_targets, padded]), truncation=0.05, reduction="none"
    )
    torch.testing.assert_close(losses[-1].sum() / 5, alone)


@given(seed=st.integers(0, 10_000), smoothing=st.sampled_from([0.0, 0.1]))
def test_truncation_just_below_at_and_above(seed: int, smoothing: float) -> None:
    torch.manual_seed(seed)
    for dtype, step in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        logits = torch.randn(1, 3, VOCAB, dtype=dtype, requires_grad=True)
        target = torch.randint(VOCAB, (1, 3))
        order = oaxe.best_order(logits, target)
        probability = logits.softmax(-1).gather(2, order.unsqueeze(2)).flatten()
        least, middle = probability.sort().values[:2].tolist()
        assume(0.001 < least < middle * 0.999)
        weakest = int(probability.argmin())
        for margin, kept in (
            (least * (1 - step), True),
            (least, False),
            (least * (1 + step), False),
        ):
            losses = oaxe.oaxe_loss(
                logits, target, truncation=margin, label_smoothing=smoothing, reduction="none"
            )
            assert bool(losses[0, weakest] > 0) is kept
            assert bool((gradient(losses.sum(), logits)[0, weakest] != 0).any()) is kept
            assert (losses > 0).sum() == (3 if kept else 2)


def test_mean_keeps_truncated_tokens_in_the_denominator() -> None:
    logits = torch.tensor([[[0.9, 0.1], [0.6, 0.4]]]).log()
    loss = oaxe.oaxe_loss(logits, torch.tensor([[0, 0]]), truncation=0.7)
    torch.testing.assert_close(loss, -torch.tensor(0.9).log() / 2)


@pytest.mark.parametrize("masking", MASKS)
def test_best_order_is_what_oaxe_trains_on(masking: str) -> None:
    logits, target = sentences(masking, -100)
    order = oaxe.best_order(logits, target)
    assert torch.equal(order.sort(1).values, target.sort(1).values)
    assert torch.equal(order == -100, target == -100)
    torch.testing.assert_close(oaxe.xe_loss(logits, order), oaxe.oaxe_loss(logits, target))


@pytest.mark.parametrize("loss", [oaxe.xe_loss, oaxe.oaxe_loss])
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 1)])
def test_empty_batches_and_sentences(loss: object, shape: tuple[int, int]) -> None:
    assert callable(loss)
    logits = torch.randn(*shape, VOCAB, requires_grad=True)
    target = torch.zeros(shape, dtype=torch.long)
    for reduction in ("sum", "none", "mean"):
        ours = loss(logits, target, reduction=reduction)
        expected = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction=reduction)
        torch.testing.assert_close(ours.flatten(), expected.flatten(), equal_nan=True)
    assert gradient(loss(logits, target, reduction="sum"), logits).shape == logits.shape


def test_second_derivative() -> None:
    logits, target = sentences("scattered", -100, batch=2, length=3)
    logits.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: oaxe.oaxe_loss(x, target), logits)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_narrow_targets(dtype: torch.dtype) -> None:
    logits = torch.randn(1, 2, 300)
    target = torch.tensor([[100, 3]])
    if dtype == torch.uint8:
        target[0, 0] = 156  # -100 in that type
    for loss in (oaxe.xe_loss, oaxe.oaxe_loss):
        torch.testing.assert_close(loss(logits, target.to(dtype)), loss(logits, target))
    assert oaxe.best_order(logits, target.to(dtype)).dtype == dtype


def test_strided_logits() -> None:
    logits, target = sentences("left padding", -100)
    expected = oaxe.oaxe_loss(logits, target)
    strided = logits.transpose(0, 1).contiguous().transpose(0, 1)
    assert not strided.is_contiguous()
    torch.testing.assert_close(oaxe.oaxe_loss(strided, target), expected)


def test_names_batch_rows_that_are_not_finite() -> None:
    logits, target = sentences("none", -100)
    logits[2] = torch.nan
    with pytest.raises(ValueError, match=r"batch rows: 2"):
        oaxe.oaxe_loss(logits, target)


GOOD = (torch.zeros(2, 3, VOCAB), torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("logits", "target", "options", "message"),
    [
        (GOOD[0].flatten(0, 1), GOOD[1].flatten(), {}, r"\(batch, length, vocab\)"),
        (GOOD[0].long(), GOOD[1], {}, "floating point"),
        (GOOD[0], GOOD[1].float(), {}, "token ids"),
        (GOOD[0], GOOD[1][:1], {}, "batch size 2, target 1"),
        (GOOD[0], GOOD[1][:, :2], {}, "length 3.*target 2.*stands for nothing"),
        (GOOD[0], GOOD[1] + VOCAB, {}, r"target\[0, 0\] is 7, outside the vocabulary 0..6"),
        (GOOD[0], GOOD[1] - 1, {}, r"is -1.*ignore_index \(-100\)"),
        (GOOD[0], GOOD[1], {"reduction": "average"}, '"mean", "sum" or "none".*average'),
        (GOOD[0], GOOD[1], {"label_smoothing": 1.5}, r"label_smoothing.*1.5"),
        (GOOD[0], GOOD[1], {"truncation": 1.0}, r"truncation.*1.0"),
        (GOOD[0], GOOD[1], {"truncation": -0.1}, r"truncation.*-0.1"),
        (GOOD[0], GOOD[1], {"weight": torch.ones(3)}, r"weight .*\(7,\), got .*\(3,\)"),
        (GOOD[0], GOOD[1], {"weight": torch.ones(7).long()}, "floating point weight"),
    ],
)
def test_rejects_wrong_arguments(
    logits: Tensor, target: Tensor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.oaxe_loss(logits, target, **options)


def test_learns_one_of_several_orders_where_xe_repeats_words() -> None:
    orders = torch.tensor([[0, 1, 2, 3, 4], [3, 4, 0, 1, 2], [0, 3, 4, 1, 2]])
    shares = torch.tensor([0.40, 0.35, 0.25])

    def train(start: Tensor, loss: object) -> Tensor:
        assert callable(loss)
        logits = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=0.1)
        for _ in range(150):
            target = orders[shares.multinomial(128, replacement=True)]
            optimizer.zero_grad()
            loss(logits.expand(128, -1, -1), target).backward()
            optimizer.step()
        return logits.detach()

    after_xe = train(torch.zeros(5, 5), oaxe.xe_loss)
    assert after_xe.argmax(-1).tolist() == [0, 1, 2, 1, 2]  # "I ate pizza ate pizza"
    after_oaxe = train(after_xe, oaxe.oaxe_loss)
    assert after_oaxe.argmax(-1).tolist() in orders.tolist()


@pytest.mark.parametrize("ignore_index", [None, 1.5, "pad", True])
def test_rejects_an_ignore_index_that_is_no_id(ignore_index: object) -> None:
    logits, target = torch.randn(1, 2, 4), torch.tensor([[1, 2]])
    with pytest.raises(TypeError, match=r"ignore_index must be a whole number, got .*leave it at"):
        oaxe.oaxe_loss(logits, target, ignore_index=ignore_index)  # type: ignore[call-overload]


def test_rejects_tensors_on_different_devices() -> None:
    logits, target = torch.randn(1, 2, 4, device="meta"), torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match=r"on meta, target on cpu; .* target.to\('meta'\)"):
        oaxe.xe_loss(logits, target)


def test_warns_of_probabilities() -> None:
    logits, target = torch.randn(2, 3, 4), torch.tensor([[1, 2, 0]] * 2)
    with pytest.warns(UserWarning, match="sum to 1 in their first row, as probabilities do"):
        oaxe.xe_loss(logits.softmax(-1), target)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oaxe.xe_loss(logits, target)
        oaxe.xe_loss(logits.log_softmax(-1), target)
        oaxe.linear_xe_loss(logits, torch.eye(4), target)
