"""Decoder inputs: which places are masked, which are charged, and how often."""

import pytest
import torch
from torch import Tensor

from oaxe.model.masking import IGNORED, causal_inputs, ctc_inputs, decoder_inputs, random_places
from oaxe.text.symbols import BOS, EOS, MASK, PAD


def targets(*lengths: int) -> Tensor:
    rows = torch.randint(7, 50, (len(lengths), max(lengths)))
    return rows.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)


def test_unobserved_hides_and_charges_all() -> None:
    target = targets(5, 2, 1, 0)
    inputs, charged = decoder_inputs(target, "unobserved")
    real = target != PAD
    assert (inputs == torch.where(real, MASK, PAD)).all()
    assert (charged == torch.where(real, target, IGNORED)).all()


@pytest.mark.parametrize("objective", ["partial-all", "partial-masks"])
def test_partial_shows_the_rest(objective: str) -> None:
    target = targets(*range(30))
    inputs, charged = decoder_inputs(target, objective)  # type: ignore[arg-type]
    real, masked = target != PAD, inputs == MASK
    assert (inputs[~masked] == target[~masked]).all()
    assert not (masked & ~real).any()
    assert masked[1:].any(1).all()  # at least one place of every sentence that has one
    should = real if objective == "partial-all" else masked
    assert (charged == torch.where(should, target, IGNORED)).all()


def test_the_number_of_masks_is_uniform_and_so_are_their_places() -> None:
    real = targets(6, 3).ne(PAD).repeat(20_000, 1)
    masked = random_places(real, torch.Generator().manual_seed(3))
    assert not masked[~real].any()
    for row, n in ((0, 6), (1, 3)):
        rows = masked[row::2]
        counts = rows.sum(1).bincount(minlength=n + 1) / len(rows)
        assert counts[0] == 0
        torch.testing.assert_close(counts[1:], torch.full((n,), 1 / n), atol=0.015, rtol=0)
        expected = torch.full((n,), (n + 1) / 2 / n)  # mean of k over n, for every place
        torch.testing.assert_close(rows[:, :n].float().mean(0), expected, atol=0.015, rtol=0)


def test_the_generator_decides() -> None:
    target = targets(20, 13, 7)

    def drawn(seed: int) -> Tensor:
        return decoder_inputs(target, "partial-all", torch.Generator().manual_seed(seed))[0]

    assert drawn(1).equal(drawn(1))
    assert not drawn(1).equal(drawn(2))


def test_an_unknown_objective() -> None:
    with pytest.raises(ValueError, match=r"'partial-masks'.*got 'all'"):
        decoder_inputs(targets(2), "all")  # type: ignore[arg-type]


def test_causal_inputs_are_the_targets_one_step_late() -> None:
    target = targets(4, 2, 0)
    inputs, charged = causal_inputs(target)
    for row, n in enumerate((4, 2, 0)):
        words = target[row, :n].tolist()
        assert inputs[row].tolist() == [BOS, *words] + [PAD] * (4 - n)
        assert charged[row].tolist() == [*words, EOS] + [IGNORED] * (4 - n)


def test_ctc_inputs_repeat_the_source() -> None:
    source = torch.tensor([[8, 9, EOS], [7, EOS, PAD]])
    inputs = ctc_inputs(source, 3)
    assert inputs.tolist() == [[8, 8, 8, 9, 9, 9, EOS, EOS, EOS], [7] * 3 + [EOS] * 3 + [PAD] * 3]
