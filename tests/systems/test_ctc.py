"""CTC: its loss by PyTorch's own, collapsing by hand, and that it learns."""

from itertools import groupby
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
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


@torch.no_grad()
def test_a_bonus_prefers_words_to_blanks() -> None:
    """Probabilities stay those of the model."""
    model = emphasise(micro("ctc", "pre"), BLANK)
    source = random_batch(9, 3, 13, 6)
    lengths = []
    for bonus in (0.0, 1.5, 100.0):
        found = model.translate(source, Decoding(bonus=bonus))
        lengths.append(sum(len(ours.tokens) for (ours,) in found))
        for row, (ours,) in zip(source, found, strict=True):
            sentence = row[row != PAD]
            inputs = sentence.repeat_interleave(2).unsqueeze(0)
            logits = model.transformer.logits(
                hidden_states(model.transformer, sentence.unsqueeze(0), inputs)
            )[0]
            logits[:, [s for s in range(7) if s != BLANK]] = -torch.inf
            log_probs = logits.log_softmax(1)
            words = log_probs.index_fill(1, torch.tensor(BLANK), -torch.inf).max(1)
            is_blank = log_probs[:, BLANK] - bonus > words.values
            labels = torch.where(is_blank, BLANK, words.indices).tolist()
            assert ours.tokens == [w for w, _ in groupby(labels) if w != BLANK]
            total = sum(log_probs[i, label].item() for i, label in enumerate(labels))
            assert ours.log_probability == pytest.approx(total, abs=1e-3)
    assert lengths[0] < lengths[1] < lengths[2]


def test_samples_that_are_hardly_random_are_the_likeliest_labels() -> None:
    model, source = emphasise(micro("ctc", "pre"), BLANK), random_batch(9, 3, 6, 1)
    how = Decoding("samples", samples=3, temperature=1e-5)  # ties aside
    found = model.translate(source, how)
    for ours, (best,) in zip(found, model.translate(source, Decoding()), strict=True):
        assert [one.tokens for one in ours] == [best.tokens] * 3
        assert ours[0].log_probability == pytest.approx(best.log_probability, rel=1e-4)
        assert (ours[0].score, ours[0].length) == (1.0, best.length)


def test_padding_and_batch_mates_change_nothing_of_the_beam() -> None:
    model, source = micro("ctc", "pre").double(), random_batch(9, 3, 13, 6, 1)
    how = Decoding("beam", bonus=0.5)
    for row, together in zip(source, model.translate(source, how), strict=True):
        (alone,) = model.translate(row[row != PAD][None], how)
        assert alone[0].tokens == together[0].tokens
        assert alone[0].score == pytest.approx(together[0].score, rel=1e-5)
        assert alone[0].length == together[0].length == 2 * (row != PAD).sum()


def test_the_beam_finds_texts_of_a_higher_probability() -> None:
    """That of all alignments, by PyTorch's own loss."""
    model, source = micro("ctc", "pre"), random_batch(7, 3, 5)
    how = Decoding("beam", beam=50, top_words=99)
    for sentence, beam, labels in zip(
        source, model.translate(source, how), model.translate(source, Decoding()), strict=True
    ):
        sentence = sentence[sentence != PAD]
        inputs = sentence.repeat_interleave(2).unsqueeze(0)
        with torch.no_grad():
            hidden = hidden_states(model.transformer, sentence.unsqueeze(0), inputs)
            logits = model.transformer.logits(hidden)[0]
        logits[:, [s for s in range(7) if s != BLANK]] = -1e9
        sizes = torch.tensor([len(logits)])

        def log_probability(text: list[int], logits: Tensor = logits, n: Tensor = sizes) -> float:
            words, length = torch.tensor([text]), torch.tensor([len(text)])
            log_probs = logits.log_softmax(1).unsqueeze(1)
            return -F.ctc_loss(log_probs, words, n, length, blank=BLANK, reduction="sum").item()

        ours, theirs = log_probability(beam[0].tokens), log_probability(labels[0].tokens)
        assert ours >= theirs - 1e-4
        # Prefixes that were dropped take some of the probability with them.
        assert beam[0].log_probability == pytest.approx(ours, abs=0.2)
        assert beam[0].log_probability <= ours + 1e-3


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
    monkeypatch.setattr(ctc, "likeliest", lambda *_, **__: fixed)
    model = micro("ctc", options={"upsample": 1})
    (found,) = model.translate(torch.full_like(predicted, EOS), Decoding(), compute)
    assert found[0].tokens == expected


def test_consistency_compares_two_passes_of_other_dropout() -> None:
    """Means of both losses and divergences, by torch's own."""
    model = micro("ctc", options={"consistency": 0.7}, dropout=0.3).train()
    source, target = training_batch(9, 5, 12)
    example, transformer = model.example(source, target), model.transformer
    torch.manual_seed(4)
    loss, statistics = model(example, progress_of(model))
    torch.manual_seed(4)
    passes = [
        transformer.decode(example.inputs, example.mask, transformer.encode(source))
        for _ in range(2)
    ]
    given: Any = {"blank": BLANK, "logit_mask": example.mask, "reduction": "sum"}
    logits = [transformer.logits(hidden) for hidden in passes]
    losses = [oaxe.ctc_loss(x, example.target, **given) for x in logits]
    p, q = (x.log_softmax(-1)[example.mask] for x in logits)
    apart = [F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))]
    expected = sum(losses) / 2 + 0.7 * sum(apart) / 2
    torch.testing.assert_close(loss, torch.as_tensor(expected), rtol=1e-5, atol=1e-4)
    assert statistics["divergence"][0] > 1
    _, statistics = model.eval()(example, progress_of(model))
    assert set(statistics) == {"loss", "impossible"}


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
    assert str(Decoding(bonus=0.5)) == "repeats and blanks removed, bonus 0.5"
    drawn = Decoding("samples", 0.5, samples=8, temperature=0.5)
    assert str(drawn) == "consensus of 8 samples, temperature 0.5"
    assert str(Decoding("beam", 0.5)) == "beam 20 over all alignments, bonus 0.5"
    assert str(Decoding("beam", 0, 7, 3)) == "beam 7 over all alignments of 3 words a position"


def test_learns_to_reverse() -> None:
    model = learn("ctc", steps=450, layers=2)
    assert exact_matches(model, Decoding()) > 0.9  # 0.95 and 1.0 with two seeds
