"""CTC with glancing: the alignment by enumeration, how much is revealed, and that it learns."""

import math
from itertools import groupby, product
from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.search.hypothesis import forbidden
from oaxe.systems import Example
from oaxe.systems.ctc_glat import Decoding, Model
from oaxe.text.symbols import BLANK, EOS, PAD
from tests.models import emphasise, hidden_states, micro, random_batch
from tests.runs import same
from tests.systems.digits import check_fine_tuning, exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch

NOTHING = torch.tensor(0), torch.tensor(1)


def glancing(**options: Any) -> Model:
    """In training mode, without dropout."""
    model = emphasise(micro("ctc_glat", options=options, dropout=0.0), BLANK)
    assert isinstance(model, Model)
    model.train()
    return model


@torch.no_grad()
def naive_logits(model: Model, source: Tensor) -> Tensor:
    """``(positions, vocab)`` of one sentence without padding."""
    inputs = source.repeat_interleave(model.options.upsample).unsqueeze(0)
    return model.transformer.logits(hidden_states(model.transformer, source[None], inputs))[0]


def best_alignment(logits: Tensor, words: list[int]) -> list[int]:
    """The likeliest of all label sequences that collapse into the words."""
    sequences = [
        labels
        for labels in product({*words, BLANK}, repeat=len(logits))
        if [label for label, _ in groupby(labels) if label != BLANK] == words
    ]
    positions = range(len(logits))
    return list(max(sequences, key=lambda labels: sum(logits[positions, list(labels)].tolist())))


def naive_wrong(logits: Tensor, labels: list[int]) -> int:
    logits[:, forbidden(logits.device, BLANK)] = -math.inf
    return sum(said != label for said, label in zip(logits.argmax(1).tolist(), labels, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_reveals_labels_of_the_best_alignment(share: float) -> None:
    model = glancing()
    source = random_batch(4, 3, 4, 2)
    source = torch.where((source > EOS) & (source < 12), 12, source)  # no word of the target
    target = torch.tensor([[8, 9, 10], [11, 11, PAD], [8, 8, 8], [7, 7, 7]])  # 5 of 4 positions
    example = model.example(source, target)
    encoded = model.transformer.encode(source)
    inputs, seen = model.glance(example, encoded, torch.tensor(share, dtype=torch.float64))
    n_wrong = n_revealed = 0
    for row in range(3):
        logits = naive_logits(model, source[row][source[row] != PAD])
        labels = best_alignment(logits, target[row][target[row] != PAD].tolist())
        wrong = naive_wrong(logits, labels)
        shown = [i for i, x in enumerate(inputs[row].tolist()) if x != example.inputs[row, i]]
        assert len(shown) == math.floor(share * wrong)
        assert [inputs[row, i].item() for i in shown] == [labels[i] for i in shown]
        n_wrong, n_revealed = n_wrong + wrong, n_revealed + len(shown)
    assert inputs[3].equal(example.inputs[3])  # it has no alignment
    n_positions = int(example.mask.sum())
    assert [x.item() for x in seen["wrong"]] == [n_wrong, n_positions]
    assert [x.item() for x in seen["revealed"]] == [n_revealed, n_positions]
    assert n_wrong > 8
    assert (inputs == BLANK).any() == (share > 0)


def test_without_revealing_it_is_ctc() -> None:
    model, plain = glancing(start=0.0, end=0.0), micro("ctc", dropout=0.0).train()
    plain.load_state_dict(model.state_dict())
    source, target = training_batch(12, 5, 9)
    losses = []
    for one in (model, plain):
        loss, _ = one(one.example(source, target), progress_of(one))
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.equal(theirs.grad)


def test_the_share_falls_from_start_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shares = glancing(start=0.5, end=0.3), []

    def glance(example: Example, encoded: object, share: Tensor) -> tuple[Tensor, object]:
        shares.append(share.item())
        return example.inputs, {"wrong": NOTHING}

    monkeypatch.setattr(model, "glance", glance)
    example = model.example(*training_batch(8, 6))
    for epoch, epochs in ((0, 4), (2, 4), (4, 4), (9, math.inf)):
        _, statistics = model(example, progress_of(model, epoch, epochs))
        assert statistics["wrong"] == NOTHING
    assert shares == pytest.approx([0.5, 0.4, 0.3, 0.5])


def test_nothing_is_revealed_at_validation() -> None:
    model = glancing().eval()
    example = model.example(*training_batch(8, 6))
    _, statistics = model(example, progress_of(model))
    assert set(statistics) == {"loss", "impossible"}


def test_glancing_at_a_packed_batch_is_the_same() -> None:
    model = glancing()
    source, target = training_batch(12, 5, 9)
    example = model.example(source, target)
    one = torch.tensor(1.0)
    _, expected = model.glance(example, model.transformer.encode(source), one)
    model.transformer.room = model.room(3, int((source != PAD).sum()) + 2, 0)
    _, found = model.glance(example, model.transformer.encode(source), one)
    assert found == expected


def test_takes_the_whole_of_a_ctc_model_and_its_advice() -> None:
    model, other = micro("ctc_glat"), micro("ctc")
    assert same(model.weights_from(other), other.state_dict())
    assert "raise ctc_glat.upsample" in model.advice({"impossible": 0.03}, from_scratch=True)


def test_advice_on_objectives_that_need_a_start() -> None:
    model = glancing(objective="ngrams")
    assert "ctc_glat.objective ngrams is for" in model.advice({}, from_scratch=True)
    assert not model.advice({}, from_scratch=False)
    assert not glancing().advice({}, from_scratch=True)


def test_learns_to_reverse() -> None:
    model = learn("ctc_glat", steps=450, layers=2)
    assert exact_matches(model, Decoding()) > 0.9
    check_fine_tuning(model, Decoding())
