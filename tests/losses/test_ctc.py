"""CTC against F.ctc_loss sentence by sentence, and against all label sequences."""

from itertools import groupby, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oaxe
from oaxe.losses.ctc import _best_path, _sum

VOCAB, BLANK = 4, 2
WORDS = torch.tensor([0, 1, 3])


def example(batch: int, m: int, n: int) -> tuple[Tensor, Tensor]:
    logits = torch.randn(batch, m, VOCAB, dtype=torch.float64, requires_grad=True)
    return logits, WORDS[torch.randint(3, (batch, n))]


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(loss, logits)
    return result


def one_sentence(logits: Tensor, target: Tensor) -> Tensor:
    return F.ctc_loss(
        logits.log_softmax(-1).unsqueeze(1),
        target.unsqueeze(0),
        torch.tensor([len(logits)]),
        torch.tensor([len(target)]),
        blank=BLANK,
        reduction="none",
    )[0]


def all_paths(length: int, target: list[int]) -> list[list[int]]:
    """Every label sequence that gives the target once repeats and blanks are removed."""
    return [
        list(path)
        for path in product(range(VOCAB), repeat=length)
        if [label for label, _ in groupby(path) if label != BLANK] == target
    ]


def scores_of(logits: Tensor, paths: list[list[int]]) -> Tensor:
    log_probs = logits.log_softmax(-1)
    return torch.stack([log_probs[torch.arange(len(logits)), path].sum() for path in paths])


def by_brute_force(logits: Tensor, target: list[int]) -> Tensor:
    return -scores_of(logits, all_paths(len(logits), target)).logsumexp(0)


def test_all_label_sequences() -> None:
    logits, _ = example(2, 4, 2)
    for target in ([0, 1], [3, 3], [1], []):
        words = torch.tensor([target, target], dtype=torch.long)
        ours = oaxe.ctc_loss(logits, words, blank=BLANK, reduction="none")
        expected = torch.stack([by_brute_force(sentence, target) for sentence in logits])
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(
            gradient(ours.sum(), logits), gradient(expected.sum(), logits), atol=1e-10, rtol=0
        )


@given(
    seed=st.integers(0, 10_000),
    targets=st.lists(st.booleans(), min_size=3, max_size=3),
    predictions=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_masked_targets_and_predictions_take_no_part(
    seed: int, targets: list[bool], predictions: list[bool]
) -> None:
    torch.manual_seed(seed)
    logits, target = example(2, 8, 3)
    kept, takes_part = torch.tensor(targets), torch.tensor(predictions)
    takes_part[:5] = True  # enough for any target of three words
    losses = oaxe.ctc_loss(
        logits,
        target.masked_fill(~kept, -100),
        blank=BLANK,
        logit_mask=takes_part.expand(2, -1),
        reduction="none",
    )
    expected = torch.stack(
        [one_sentence(x[takes_part], y[kept]) for x, y in zip(logits, target, strict=True)]
    )
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(
        gradient(losses.sum(), logits), gradient(expected.sum(), logits), atol=1e-10, rtol=0
    )


@given(seed=st.integers(0, 10_000))
def test_never_negative(seed: int) -> None:
    """Each word is predicted three times, all but surely: alignments may add up to 1.0000001."""
    torch.manual_seed(seed)
    target = WORDS[torch.randint(3, (256, 4))]
    certain = 20.0 * F.one_hot(target.repeat_interleave(3, 1), VOCAB)
    logits = torch.randn(256, 12, VOCAB) + certain
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        losses = oaxe.ctc_loss(logits.to(dtype), target, blank=BLANK, reduction="none")
        assert (losses >= 0).all()


def test_impossible_targets() -> None:
    logits, _ = example(2, 2, 2)
    target = torch.tensor([[0, 0], [0, 1]])  # the first needs a blank between, so 3 predictions
    losses = oaxe.ctc_loss(logits, target, blank=BLANK, reduction="none")
    assert losses[0] == 0
    assert losses[1] > 0
    assert (gradient(losses.sum(), logits)[0] == 0).all()
    mean = oaxe.ctc_loss(logits, target, blank=BLANK)
    torch.testing.assert_close(mean, losses.sum() / 4)
    strict = oaxe.ctc_loss(logits, target, blank=BLANK, zero_infinity=False, reduction="none")
    assert strict.tolist() == [float("inf"), pytest.approx(losses[1].item())]


def test_no_prediction_takes_part() -> None:
    logits, target = example(2, 3, 1)
    target[1, 0] = -100
    nobody = torch.zeros(2, 3, dtype=torch.bool)
    options = {"blank": BLANK, "logit_mask": nobody, "reduction": "none"}
    losses = oaxe.ctc_loss(logits, target, **options)  # type: ignore[arg-type]
    assert losses.tolist() == [0.0, 0.0]
    assert (gradient(losses.sum(), logits) == 0).all()
    strict = oaxe.ctc_loss(logits, target, zero_infinity=False, **options)  # type: ignore[arg-type]
    assert strict.tolist() == [float("inf"), 0.0]  # one word without a prediction; no word


def test_reductions() -> None:
    logits, target = example(3, 7, 3)
    target[0, 1:] = -100
    each = oaxe.ctc_loss(logits, target, blank=BLANK, reduction="none")
    assert each.shape == (3,)
    torch.testing.assert_close(
        oaxe.ctc_loss(logits, target, blank=BLANK, reduction="sum"), each.sum()
    )
    torch.testing.assert_close(oaxe.ctc_loss(logits, target, blank=BLANK), each.sum() / 7)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (2, 1, 1)])
def test_empty_batches_and_sentences(shape: tuple[int, int, int]) -> None:
    logits, target = example(*shape)
    losses = oaxe.ctc_loss(logits, target, blank=BLANK, reduction="none")
    assert losses.shape == shape[:1]
    assert losses.isfinite().all()
    assert gradient(losses.sum(), logits).shape == logits.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits, target = example(3, 7, 3)
    half = logits.detach().to(dtype)
    ours = oaxe.ctc_loss(half, target, blank=BLANK)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, oaxe.ctc_loss(half.float(), target, blank=BLANK))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_of_torch_on_long_sentences(dtype: torch.dtype) -> None:
    vocab, n_predictions, n_targets = (
        60,
        torch.tensor([50, 41, 12, 33]),
        torch.tensor([20, 7, 6, 0]),
    )
    logits = (2 * torch.randn(4, 50, vocab, dtype=dtype)).requires_grad_()
    target = torch.randint(1, 5, (4, 20))  # many repeats
    mask = torch.arange(50) < n_predictions.unsqueeze(1)
    ignored = torch.arange(20) >= n_targets.unsqueeze(1)
    ours = oaxe.ctc_loss(
        logits, target.masked_fill(ignored, -100), blank=0, logit_mask=mask, reduction="none"
    )
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    theirs = F.ctc_loss(
        log_probs, target, n_predictions, n_targets, reduction="none", zero_infinity=True
    )
    torch.testing.assert_close(ours, theirs)
    weight = torch.rand(4, dtype=dtype)
    torch.testing.assert_close(
        gradient((ours * weight).sum(), logits),
        gradient((theirs * weight).sum(), logits),
        atol=1e-5 if dtype == torch.float32 else 1e-10,
        rtol=1e-4,
    )


def test_gradient_by_finite_differences() -> None:
    logits, target = example(3, 5, 2)
    target[1] = target[1, 0]
    mask = torch.arange(5) < torch.tensor([[5], [4], [1]])  # the last is impossible

    def loss(logits: Tensor) -> Tensor:
        return oaxe.ctc_loss(logits, target, blank=BLANK, logit_mask=mask, reduction="none")

    assert torch.autograd.gradcheck(loss, logits)


def test_probabilities_of_all_outputs_add_up_to_one() -> None:
    logits, _ = example(1, 4, 0)
    outputs = [list(y) for n in range(5) for y in product(WORDS.tolist(), repeat=n)]
    target = torch.tensor([y + [-100] * (4 - len(y)) for y in outputs])
    losses = oaxe.ctc_loss(
        logits.expand(len(outputs), -1, -1),
        target,
        blank=BLANK,
        zero_infinity=False,
        reduction="none",
    )
    assert losses.neg().exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_words_that_cannot_be_said_leave_gradients_finite() -> None:
    logits, _ = example(2, 5, 0)
    target = torch.tensor([[0, 1], [0, 1]])
    hard = logits.detach().clone()
    hard[0, :3, 0] = -torch.inf  # the first word, early
    hard[1, :, BLANK] = -torch.inf
    hard.requires_grad_()
    for n, possible in ((5, [True, True]), (3, [False, True])):
        losses = oaxe.ctc_loss(
            hard[:, :n], target, blank=BLANK, zero_infinity=False, reduction="none"
        )
        assert losses.isfinite().tolist() == possible
        assert gradient(losses.sum(), hard).isfinite().all()


@pytest.mark.parametrize("target", [[0, 1], [3, 3], [1], [], [0, 3, 0]])
def test_best_path_is_the_best_of_all(target: list[int]) -> None:
    logits, _ = example(3, 5, 0)
    found = oaxe.ctc_best_path(logits, torch.tensor([target] * 3, dtype=torch.long), blank=BLANK)
    paths = all_paths(5, target)
    for sentence, path in zip(logits, found, strict=True):
        assert path.tolist() == paths[int(scores_of(sentence, paths).argmax())]


def test_best_path_under_masks() -> None:
    logits, target = example(3, 8, 4)
    mask, kept = torch.rand(3, 8) < 0.7, torch.rand(3, 4) < 0.7
    mask[:, :3], kept[:, 0], kept[1] = True, True, False
    mask[2], kept[2] = torch.arange(8) < 1, torch.arange(4) < 2  # impossible
    found = oaxe.ctc_best_path(
        logits, target.masked_fill(~kept, -9), blank=BLANK, logit_mask=mask, ignore_index=-9
    )
    assert (found[~mask] == -9).all()
    assert (found[2] == -9).all()
    for b in range(2):
        paths = all_paths(int(mask[b].sum()), target[b][kept[b]].tolist())
        best = paths[int(scores_of(logits[b][mask[b]], paths).argmax())]
        assert found[b][mask[b]].tolist() == best


def test_best_path_of_equals_is_always_the_same() -> None:
    logits, target = torch.zeros(40, 6, VOCAB), torch.tensor([[0, 1, 1]]).expand(40, -1)
    found = oaxe.ctc_best_path(logits, target, blank=BLANK)
    assert (found == found[0]).all()
    assert found[0].tolist() in all_paths(6, [0, 1, 1])


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (2, 1, 1)])
def test_best_path_of_empty_batches_and_sentences(shape: tuple[int, int, int]) -> None:
    logits, target = example(*shape)
    found = oaxe.ctc_best_path(logits, target, blank=BLANK)
    assert found.shape == shape[:2]
    if shape == (2, 3, 0):
        assert (found == BLANK).all()
    if shape == (2, 1, 1):
        assert found.equal(target)


def test_second_derivative_is_refused() -> None:
    logits, target = example(1, 5, 2)
    (first,) = torch.autograd.grad(
        oaxe.ctc_loss(logits, target, blank=BLANK), logits, create_graph=True
    )
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_a_graph_break(backend: str) -> None:
    logits, target = example(3, 7, 3)

    def step(logits: Tensor, target: Tensor) -> Tensor:
        return oaxe.ctc_loss(2 * logits, target, blank=BLANK)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(logits, target), step(logits, target))
    torch.testing.assert_close(
        gradient(compiled(logits, target), logits), gradient(step(logits, target), logits)
    )


def test_without_gradients() -> None:
    logits, target = example(3, 7, 3)
    with torch.no_grad():
        value = oaxe.ctc_loss(logits, target, blank=BLANK)
    torch.testing.assert_close(value, oaxe.ctc_loss(logits, target, blank=BLANK).detach())


def test_operators_are_registered_correctly() -> None:
    lengths = torch.tensor([7, 6, 5]), torch.tensor([3, 2, 0])
    emissions = torch.randn(3, 7, 4, dtype=torch.float64).log_softmax(-1).requires_grad_()
    words = WORDS[torch.randint(3, (3, 3))]
    given: Any = emissions, words, *lengths
    torch.library.opcheck(_sum, given)
    torch.library.opcheck(_best_path, given)


@pytest.mark.parametrize(
    ("target", "blank", "message"),
    [
        (torch.tensor([[0, BLANK]]), BLANK, r"blank \(2\) in batch rows \[0\]"),
        (torch.tensor([[0, 1]]), -1, "blank is -1"),
    ],
)
def test_rejects_wrong_targets(target: Tensor, blank: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oaxe.ctc_loss(torch.zeros(1, 5, VOCAB), target, blank=blank)
