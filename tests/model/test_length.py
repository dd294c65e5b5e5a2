"""The length predictor: what it reads, its loss, and the lengths that are tried."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.model.length import LengthPredictor, likely_lengths, with_length_in_front
from oaxe.text.symbols import LENGTH, PAD
from tests.models import MICRO, micro_transformer, random_batch, with_noise

MOST = 12


def predictor() -> LengthPredictor:
    return with_noise(LengthPredictor(MICRO["dim"], MOST))


def test_classifies_the_state_of_a_symbol_in_front_of_the_source() -> None:
    transformer, length = micro_transformer(), predictor()
    source = random_batch(9, 3, 5)
    encoded, logits = length.encode(transformer, source)
    assert encoded.mask.tolist() == F.pad(source != PAD, (1, 0), value=True).tolist()
    for row, sentence in enumerate(source):
        alone = sentence[sentence != PAD].tolist()  # padding and batch mates change nothing
        expected = transformer.encode(torch.tensor([[LENGTH, *alone]])).hidden[0]
        torch.testing.assert_close(
            encoded.hidden[row, : len(alone) + 1], expected, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            logits[row], F.linear(expected[0], length.output.weight, length.output.bias)
        )
    assert logits.shape == (3, MOST + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_is_summed_cross_entropy_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(6, MOST + 1).to(dtype).requires_grad_()
    lengths = torch.tensor([0, 1, 5, 12, 7, 3])
    lengths[2] = logits[2].argmax()
    loss, statistics = predictor().loss(logits, lengths)
    log_probs = logits.detach().double().log_softmax(1)
    assert loss.dtype == torch.float32
    expected = -sum(float(row[n]) for row, n in zip(log_probs, lengths, strict=True))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    right = [int(row.argmax()) == n for row, n in zip(log_probs, lengths.tolist(), strict=True)]
    assert any(right)
    found = {name: tuple(number.item() for number in pair) for name, pair in statistics.items()}
    assert found == {"length_loss": (loss.item(), 6), "length_accuracy": (sum(right), 6)}
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = log_probs.exp() - F.one_hot(lengths, MOST + 1)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), gradient, rtol=0.01, atol=1e-6)


def naive_lengths(logits: Tensor, words: int, candidates: int) -> list[int]:
    """By plain sorting; the longest that is allowed fills up where there are too few."""
    longest = 2 * words + 10
    allowed = [n for n in range(1, len(logits)) if n <= longest]
    best = sorted(allowed, key=lambda n: -float(logits[n]))[:candidates]
    return best + [longest] * (min(candidates, len(logits) - 1) - len(best))


@pytest.mark.parametrize("candidates", [1, 5, 12, 39, 40, 60])
def test_likely_lengths_equal_naive(candidates: int) -> None:
    """Never 0, never above twice the source and 10, however likely the model finds them."""
    words = [0, 1, 4, 9, 14, 30]
    logits = torch.randn(len(words), 41)
    logits[:, 0] = logits[1, 13:] = 10
    mask = torch.arange(32) < torch.tensor(words)[:, None] + 2  # LENGTH in front, EOS behind
    found = likely_lengths(logits, mask, candidates).tolist()
    assert found == [naive_lengths(*of, candidates) for of in zip(logits, words, strict=True)]
    assert min(min(row) for row in found) >= 1


def test_positions_move_by_one_for_the_symbol_in_front() -> None:
    positions = torch.randn(5, 3)
    moved = with_length_in_front(positions)
    assert moved.shape == positions.shape
    assert moved[1:].equal(positions[:-1])
    assert moved[0].equal(positions[0])
