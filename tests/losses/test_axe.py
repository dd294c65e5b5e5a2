"""AXE against the cheapest of all monotone alignments: values and gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oaxe
from oaxe.losses.axe import _monotone_alignment
from tests.oracles import all_monotone_alignments, axe_by_brute_force

VOCAB, BLANK = 6, 5


def example(batch: int, m: int, n: int) -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(batch, m, VOCAB, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(VOCAB - 1, (batch, n))


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(loss, logits)
    return result


def test_the_oracle_counts_delannoy_paths() -> None:
    assert [len(all_monotone_alignments(n, n)) for n in range(5)] == [1, 3, 13, 63, 321]


@pytest.mark.parametrize("delta", [1.0, 2.5, 0.3])
@pytest.mark.parametrize("m", range(1, 5))
@pytest.mark.parametrize("n", range(5))
def test_least_of_all_monotone_alignments(n: int, m: int, delta: float) -> None:
    logits, target = example(3, m, n)
    ours = oaxe.axe_loss(logits, target, blank=BLANK, delta=delta, reduction="none")
    expected = torch.stack(
        [axe_by_brute_force(x, y, BLANK, delta) for x, y in zip(logits, target, strict=True)]
    )
    torch.testing.assert_close(ours, expected)
    weight = torch.rand(3, dtype=torch.float64)
    torch.testing.assert_close(
        gradient((ours * weight).sum(), logits), gradient((expected * weight).sum(), logits)
    )


@given(
    seed=st.integers(0, 10_000),
    targets=st.lists(st.booleans(), min_size=4, max_size=4),
    predictions=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_masked_targets_and_predictions_take_no_part(
    seed: int, targets: list[bool], predictions: list[bool]
) -> None:
    torch.manual_seed(seed)
    logits, target = example(2, 5, 4)
    kept, takes_part = torch.tensor(targets), torch.tensor(predictions)
    losses = oaxe.axe_loss(
        logits,
        target.masked_fill(~kept, -100),
        blank=BLANK,
        delta=1.5,
        logit_mask=takes_part.expand(2, -1),
        reduction="none",
    )
    if not takes_part.any():
        assert losses.tolist() == [0.0, 0.0]
        return
    expected = torch.stack(
        [
            axe_by_brute_force(x[takes_part], y[kept], BLANK, 1.5)
            for x, y in zip(logits, target, strict=True)
        ]
    )
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(
        gradient(losses.sum(), logits), gradient(expected.sum(), logits), atol=1e-10, rtol=0
    )


def test_loss_is_infinite_without_a_possible_alignment() -> None:
    logits, target = example(2, 4, 2)
    impossible = logits.detach().clone()
    impossible[0, :, BLANK] = -torch.inf  # four predictions, two words: two must be blank
    losses = oaxe.axe_loss(impossible, target, blank=BLANK, reduction="none")
    assert losses[0] == torch.inf
    torch.testing.assert_close(losses[1], axe_by_brute_force(logits[1], target[1], BLANK, 1.0))


def test_reductions() -> None:
    logits, target = example(3, 4, 3)
    target[0, 1:] = -100
    options = {"blank": BLANK, "ignore_index": -100}
    each = oaxe.axe_loss(logits, target, reduction="none", **options)  # type: ignore[arg-type]
    total = oaxe.axe_loss(logits, target, reduction="sum", **options)  # type: ignore[arg-type]
    mean = oaxe.axe_loss(logits, target, **options)  # type: ignore[arg-type]
    assert each.shape == (3,)
    torch.testing.assert_close(total, each.sum())
    torch.testing.assert_close(mean, each.sum() / 7)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (2, 1, 1)])
def test_empty_batches_and_sentences(shape: tuple[int, int, int]) -> None:
    logits, target = example(*shape)
    losses = oaxe.axe_loss(logits, target, blank=BLANK, reduction="none")
    assert losses.shape == shape[:1]
    assert losses.isfinite().all()
    assert gradient(losses.sum(), logits).shape == logits.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target = example(3, 5, 4)
    half = logits.detach().to(dtype)
    ours = oaxe.axe_loss(half, target, blank=BLANK)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, oaxe.axe_loss(half.float(), target, blank=BLANK))


def test_second_derivative() -> None:
    logits, target = example(2, 3, 2)
    assert torch.autograd.gradgradcheck(lambda x: oaxe.axe_loss(x, target, blank=BLANK), logits)


def test_compiled_without_a_graph_break() -> None:
    logits, target = example(3, 5, 4)

    def step(logits: Tensor) -> Tensor:
        return oaxe.axe_loss(2 * logits, target, blank=BLANK)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(logits)
    torch.testing.assert_close(compiled, step(logits))
    torch.testing.assert_close(gradient(compiled, logits), gradient(step(logits), logits))


def test_operator_is_registered_correctly() -> None:
    lengths = torch.tensor([4, 2, 0]), torch.tensor([5, 1, 3])
    costs = torch.rand(3, 5, 4), torch.rand(3, 5), *lengths, 1.5
    torch.library.opcheck(_monotone_alignment, costs)
    position, skipped, blank = _monotone_alignment(*costs)
    for b, (n, m) in enumerate(zip(*lengths, strict=True)):
        assert (position[b, :n] < m).all()
        assert (position[b, :n].diff() >= 0).all()  # monotone
        assert int(blank[b].sum()) + int((~skipped[b, :n]).sum()) == m


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blank": VOCAB}, "blank is 6"),
        ({"blank": BLANK, "logit_mask": torch.ones(2, 3)}, "logit_mask must be bool"),
        ({"blank": BLANK, "reduction": "max"}, "reduction"),
        ({"blank": BLANK, "delta": -1.0}, "delta"),
    ],
)
def test_rejects_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.axe_loss(torch.zeros(2, 3, VOCAB), torch.zeros(2, 2, dtype=torch.long), **options)  # type: ignore[arg-type]


def test_warns_of_blanks_among_targets() -> None:
    logits, target = example(2, 3, 2)
    target[1, 0] = BLANK
    with pytest.warns(UserWarning, match=r"target holds the blank \(5\) in batch rows \[1\]"):
        oaxe.axe_loss(logits, target, blank=BLANK)
    weight = torch.eye(VOCAB, dtype=torch.float64)
    with pytest.warns(UserWarning, match="target holds the blank"):
        oaxe.linear_axe_loss(logits, weight, target, blank=BLANK)


def test_every_argument_has_a_gradient_without_predictions() -> None:
    hidden = torch.zeros(2, 0, 3, requires_grad=True)
    weight, bias = torch.ones(VOCAB, 3, requires_grad=True), torch.ones(VOCAB, requires_grad=True)
    target = torch.zeros(2, 2, dtype=torch.long)
    loss = oaxe.linear_axe_loss(hidden, weight, target, linear_bias=bias, blank=BLANK)
    assert loss == 0
    leaves = hidden, weight, bias
    for leaf, found in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
        assert found.equal(torch.zeros_like(leaf))
