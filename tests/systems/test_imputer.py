"""Imputer: which labels are shown, by enumeration, the loss beside them, and that it learns."""

from typing import Any

import pytest
import torch

from oaxe.losses.imputer import linear_imputer_loss
from oaxe.model.masking import IGNORED
from oaxe.systems.imputer import Decoding, Model
from oaxe.text.symbols import BLANK, PAD
from tests.models import emphasise, hidden_states, micro, random_batch
from tests.runs import same
from tests.systems.digits import copies, exact_matches, learn
from tests.systems.test_ctc_glat import best_alignment
from tests.systems.test_systems import progress_of, training_batch


def imputer(**options: float) -> Model:
    """In training mode, without dropout."""
    model = emphasise(micro("imputer", options=options, dropout=0.0), BLANK)
    assert isinstance(model, Model)
    model.train()
    return model


@torch.no_grad()
def test_shows_labels_of_the_best_alignment() -> None:
    model = imputer()
    source = random_batch(4, 3, 2)
    target = torch.tensor([[8, 9, 10], [11, 11, PAD], [7, 7, 7]])  # 5 of 4 positions
    example = model.example(source, target)
    encoded = model.transformer.encode(source)
    drawn = torch.stack([model.show(example, encoded) for _ in range(40)])
    for row in range(2):
        n = int(example.mask[row].sum())
        sentence = source[row : row + 1, : n // 2]
        hidden = hidden_states(model.transformer, sentence, example.inputs[row : row + 1, :n])
        logits = model.transformer.logits(hidden)[0]
        labels = best_alignment(logits, target[row][target[row] != PAD].tolist())
        for shown in drawn[:, row].tolist():
            assert all(s in (IGNORED, x) for s, x in zip(shown, labels, strict=False))
            assert shown[n:] == [IGNORED] * (len(shown) - n)
        counts = (drawn[:, row] != IGNORED).sum(1)
        assert counts.min() <= 1
        assert counts.max() >= n - 1
    assert (drawn[:, 2] == IGNORED).all()  # it has no alignment


@pytest.mark.parametrize("most", [0.0, 0.5])
def test_shows_half_of_the_most_on_average(most: float) -> None:
    model = imputer(shown=most)
    example = model.example(random_batch(*[13] * 300), torch.full((300, 1), 8))
    shown = model.show(example, model.transformer.encode(example.source)) != IGNORED
    assert shown.float().mean().item() == pytest.approx(most / 2, abs=0.03)


def test_loss_is_that_of_logits_that_see_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = imputer()
    source, target = training_batch(9, 5, 12)
    example = model.example(source, target)
    shown = model.show(example, model.transformer.encode(source))
    assert 0 < (shown != IGNORED).sum() < example.mask.sum()
    monkeypatch.setattr(model, "show", lambda *_: shown)
    loss, statistics = model(example, progress_of(model))
    inputs = torch.where(shown == IGNORED, example.inputs, shown)
    logits = model.transformer.logits(hidden_states(model.transformer, source, inputs))
    how: dict[str, Any] = {"blank": BLANK, "logit_mask": example.mask, "reduction": "sum"}
    one = torch.eye(logits.shape[2])
    expected = linear_imputer_loss(logits, one, example.target, shown, **how)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    weights = [*model.parameters()]
    pairs = (torch.autograd.grad(x, weights, materialize_grads=True) for x in (loss, expected))
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert statistics["shown"][0] == (shown != IGNORED).sum()


def test_with_nothing_shown_it_is_ctc() -> None:
    model, plain = imputer(shown=0.0), micro("ctc", dropout=0.0).train()
    plain.load_state_dict(model.state_dict())
    source, target = training_batch(12, 5, 9)
    losses = [one(one.example(source, target), progress_of(one))[0] for one in (model, plain)]
    assert losses[0].item() == losses[1].item()
    validated, _ = imputer().eval()(model.example(source, target), progress_of(model))
    assert validated.isfinite()


def test_takes_the_whole_of_a_ctc_model_and_its_advice() -> None:
    model, other = imputer(), micro("ctc")
    assert same(model.weights_from(other), other.state_dict())
    assert "raise imputer.upsample" in model.advice({"impossible": 0.03}, from_scratch=True)


def test_learns() -> None:
    model = learn("imputer", steps=250, strings=copies)
    assert exact_matches(model, Decoding(), copied=True) > 0.9
