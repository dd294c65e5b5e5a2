"""Decoder inputs: which positions are masked, which have a loss, and how often."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from oaxe.model.masking import (
    IGNORED,
    Masking,
    causal_inputs,
    decoder_inputs,
    random_positions,
    upsampled,
)
from oaxe.text.symbols import BOS, EOS, MASK, PAD


def targets(*lengths: int) -> Tensor:
    rows = torch.randint(7, 50, (len(lengths), max(lengths)))
    return rows.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)


def test_unobserved_masks_every_word_and_has_a_loss_for_each() -> None:
    target = targets(5, 2, 1, 0)
    inputs, wanted = decoder_inputs(target, "unobserved")
    real = target != PAD
    assert (inputs == torch.where(real, MASK, PAD)).all()
    assert (wanted == torch.where(real, target, IGNORED)).all()


@pytest.mark.parametrize("masking", ["partial-all", "partial-masks"])
def test_partial_shows_the_other_words(masking: Masking) -> None:
    target = targets(*range(30))
    inputs, wanted = decoder_inputs(target, masking)
    real, masked = target != PAD, inputs == MASK
    assert (inputs[~masked] == target[~masked]).all()
    assert not (masked & ~real).any()
    assert masked[1:].any(1).all()  # at least one position of every sentence that has one
    with_loss = real if masking == "partial-all" else masked
    assert (wanted == torch.where(with_loss, target, IGNORED)).all()


def test_the_number_of_masks_is_uniform_and_so_are_their_positions() -> None:
    real = targets(6, 3).ne(PAD).repeat(20_000, 1)
    torch.manual_seed(3)
    masked = random_positions(real)
    assert not masked[~real].any()
    for row, n in ((0, 6), (1, 3)):
        rows = masked[row::2]
        shares = rows.sum(1).bincount(minlength=n + 1) / len(rows)
        assert shares[0] == 0
        torch.testing.assert_close(shares[1:], torch.full((n,), 1 / n), atol=0.015, rtol=0)
        expected = torch.full((n,), (n + 1) / 2 / n)  # mean of k over n, for every position
        torch.testing.assert_close(rows[:, :n].float().mean(0), expected, atol=0.015, rtol=0)


def test_masks_depend_on_the_generator_alone() -> None:
    target = targets(20, 13, 7)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return decoder_inputs(target, "partial-all")[0]

    assert drawn(1).equal(drawn(1))
    assert not drawn(1).equal(drawn(2))


def test_rejects_an_unknown_masking() -> None:
    assert len(get_args(Masking)) == 3
    with pytest.raises(ValueError, match=r"'partial-masks'.*got 'all'"):
        decoder_inputs(targets(2), "all")  # type: ignore[arg-type]


def test_causal_inputs_are_the_targets_one_step_late() -> None:
    target = targets(4, 2, 0)
    inputs, wanted = causal_inputs(target)
    for row, n in enumerate((4, 2, 0)):
        words = target[row, :n].tolist()
        assert inputs[row].tolist() == [BOS, *words] + [PAD] * (4 - n)
        assert wanted[row].tolist() == [*words, EOS] + [IGNORED] * (4 - n)


def test_upsampled_repeats_the_source() -> None:
    source = torch.tensor([[8, 9, EOS], [7, EOS, PAD]])
    inputs = upsampled(source, 3)
    assert inputs.tolist() == [[8, 8, 8, 9, 9, 9, EOS, EOS, EOS], [7] * 3 + [EOS] * 3 + [PAD] * 3]
