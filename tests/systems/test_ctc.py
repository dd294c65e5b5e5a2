"""CTC: its loss by PyTorch's own, collapsing by hand, and that it learns."""

from itertools import groupby

import pytest
import torch
import torch.nn.functional as F

from oaxe.search.replay import compute
from oaxe.systems import ctc
from oaxe.systems.ctc import Decoding
from oaxe.text.symbols import BLANK, EOS, PAD
from tests.models import emphasise, hidden_states, micro, random_batch
from tests.runs import same
from tests.search.test_one_pass import naive_pass
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch


def test_loss_is_that_of_torch_on_the_upsampled_source() -> None:
    model = micro("ctc", options={"upsample": 3})
    source, target = training_batch(9, 5, 12)
    loss, statistics = model(model.example(source, target), progress_of(model))
    total = 0.0
    for row, words in zip(source, target, strict=True):
        sentence, wanted = row[row != PAD], words[words != PAD]
        inputs = sentence.repeat_interleave(3).unsqueeze(0)
        hidden = hidden_states(model.transformer, sentence.unsqueeze(0), inputs)
        log_probs = model.transformer.logits(hidden)[0].log_softmax(1)
        sizes = torch.tensor(len(log_probs)), torch.tensor(len(wanted))
        total += F.ctc_loss(log_probs, wanted, *sizes, blank=BLANK, reduction="sum").item()
    assert loss.item() == pytest.approx(total, rel=1e-5)
    n_words = int((target != PAD).sum())
    assert [number.item() for number in statistics["loss"]] == [loss.item(), n_words]


@torch.no_grad()
def test_decoding_collapses_repeats_then_removes_blanks() -> None:
    model = emphasise(micro("ctc", "pre"), BLANK)
    source = random_batch(9, 3, 13, 6, 12, 11, 10, 8)
    n_blanks = 0
    for row, (ours,) in zip(source, model.translate(source, Decoding()), strict=True):
        sentence = row[row != PAD]
        inputs = sentence.repeat_interleave(2).tolist()
        words, log_probs = naive_pass(model.transformer, sentence.tolist(), inputs, blank=True)
        n_blanks += words.count(BLANK)
        assert ours.tokens == [w for w, _ in groupby(words) if w != BLANK]
        assert ours.length == 2 * len(sentence)
        assert ours.score == pytest.approx(sum(log_probs) / len(words), abs=1e-4)
        assert ours.log_probability == pytest.approx(sum(log_probs), abs=1e-3)
    assert n_blanks > 3


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([8, 8, BLANK, 8, 9, 9], [8, 8, 9]),
        ([BLANK, BLANK], []),
        ([8], [8]),
        ([BLANK, 7, BLANK, BLANK, 7, 8], [7, 7, 8]),
    ],
)
def test_a_blank_keeps_equal_words_apart(
    labels: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = torch.tensor([labels])
    fixed = predicted, torch.zeros(predicted.shape)
    monkeypatch.setattr(ctc, "predict", lambda *_, **__: fixed)
    model = micro("ctc", options={"upsample": 1})
    (found,) = model.translate(torch.full_like(predicted, EOS), Decoding(), compute)
    assert found[0].tokens == expected


def test_targets_that_do_not_fit_are_counted_and_warned_of() -> None:
    """A word needs a position, and equal neighbours a blank between them."""
    model = micro("ctc", options={"upsample": 1})
    source = random_batch(4, 4, 4, 3)  # EOS is among them
    target = torch.tensor([[7, 8, 9, 10], [7, 7, 9, 9], [7, 7, 8, PAD], [7, 8, 9, 10]])
    _, statistics = model(model.example(source, target), progress_of(model))
    assert [number.item() for number in statistics["impossible"]] == [2, 4]
    losses = []
    for row in range(4):
        words = target[row : row + 1]
        alone = source[row : row + 1, : int((source[row] != PAD).sum())]
        losses.append(model(model.example(alone, words[words != PAD][None]), progress_of(model))[0])
    assert [loss.item() > 0 for loss in losses] == [True, False, True, False]  # they teach nothing
    assert "raise ctc.upsample" in model.advice({"impossible": 0.03}, from_scratch=True)
    assert not model.advice({"impossible": 0.01}, from_scratch=True)
    assert not model.advice({}, from_scratch=True)


def test_starts_from_an_autoregressive_model_but_for_its_target_positions() -> None:
    model, teacher = micro("ctc"), micro("transformer")
    expected = teacher.state_dict()
    del expected["transformer.target_positions.weight"]
    assert same(model.weights_from(teacher), expected)
    model, other = (micro(system, positions="both") for system in ("ctc", "cmlm"))
    tables = {f"transformer.target_{what}.weight" for what in ("positions", "from_end")}
    assert other.state_dict().keys() - model.weights_from(other).keys() == tables


def test_starts_from_another_ctc_model_as_it_is() -> None:
    model, other = micro("ctc", "pre"), micro("ctc", "pre")
    assert same(model.weights_from(other), other.state_dict())


def test_decoding_as_text() -> None:
    assert str(Decoding()) == "repeats and blanks removed"


def test_learns_to_reverse() -> None:
    model = learn("ctc", steps=350, layers=2)
    assert exact_matches(model, Decoding()) > 0.9  # 0.95 and 1.0 with two seeds
