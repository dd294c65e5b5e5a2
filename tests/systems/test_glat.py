"""GLAT: how much is revealed, the loss over the rest, and that it learns."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.search.hypothesis import forbidden
from oaxe.systems import Example, System
from oaxe.systems.glat import Decoding, Model
from oaxe.text.symbols import MASK, PAD
from tests.models import micro
from tests.runs import same
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch


def glat(**options: float) -> Model:
    """In training mode, without dropout."""
    model = micro("glat", options=options, dropout=0.0)
    assert isinstance(model, Model)
    model.train()
    return model


def naive_hidden(model: System, source: Tensor, inputs: Tensor) -> Tensor:
    """``(positions, dim)`` of one sentence without padding."""
    assert isinstance(model, Model)
    encoded, _ = model.length.encode(model.transformer, source.unsqueeze(0))
    inputs = inputs.unsqueeze(0)
    return model.transformer.decode(inputs, inputs != PAD, encoded)[0]


@torch.no_grad()
def naive_wrong(model: Model, source: Tensor, target: Tensor) -> int:
    """Words that a pass over masks alone gets wrong, in one sentence without padding."""
    logits = model.transformer.logits(naive_hidden(model, source, torch.full_like(target, MASK)))
    logits[:, forbidden(logits.device)] = -math.inf
    return int((logits.argmax(1) != target).sum())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_reveals_a_share_of_the_number_of_wrong_words(share: float) -> None:
    model = glat()
    source, target = training_batch(12, 5, 9, 11, 7)
    target[0] = model_output(model, source[0], target.shape[1])  # one sentence is all right
    example = model.example(source, target)
    encoded, _ = model.length.encode(model.transformer, example.source)
    revealed, n_wrong = model.glance(example, encoded, torch.tensor(share, dtype=torch.float64))
    wrong = [
        naive_wrong(model, s[s != PAD], t[t != PAD]) for s, t in zip(source, target, strict=True)
    ]
    assert revealed.sum(1).tolist() == [math.floor(share * n) for n in wrong]
    assert not (revealed & ~example.mask).any()
    assert wrong[0] == 0
    assert int(n_wrong) == sum(wrong) > 8


@torch.no_grad()
def model_output(model: Model, source: Tensor, length: int) -> Tensor:
    inputs = torch.full((length,), MASK)
    logits = model.transformer.logits(naive_hidden(model, source[source != PAD], inputs))
    logits[:, forbidden(logits.device)] = -math.inf
    return logits.argmax(1)


def test_positions_are_revealed_with_equal_probability() -> None:
    model = glat()
    source, target = training_batch(12)
    example = model.example(source.expand(3_000, -1), target.expand(3_000, -1))
    encoded, _ = model.length.encode(model.transformer, example.source)
    revealed, n_wrong = model.glance(example, encoded, torch.tensor(0.5))
    n_words, wrong = int((target != PAD).sum()), int(n_wrong) // 3_000
    often = revealed.float().mean(0)[:n_words].tolist()
    assert often == pytest.approx([math.floor(0.5 * wrong) / n_words] * n_words, abs=0.05)
    assert 0 < sum(often) < n_words


def test_loss_is_the_mean_over_words_that_are_not_revealed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = glat(label_smoothing=0.0, length_weight=0.0)
    source, target = training_batch(12, 5, 9)
    revealed = torch.zeros_like(target, dtype=torch.bool)
    revealed[0, 1] = revealed[0, 3] = revealed[2, 0] = True

    def glance(example: Example, encoded: object, share: Tensor) -> tuple[Tensor, Tensor]:
        return revealed, torch.tensor(7)

    monkeypatch.setattr(model, "glance", glance)
    loss, statistics = model(model.example(source, target), progress_of(model))
    losses = []
    for s, t, shown in zip(source, target, revealed, strict=True):
        words, seen = t[t != PAD], shown[t != PAD]
        hidden = naive_hidden(model, s[s != PAD], torch.where(seen, words, MASK))
        of_words = F.cross_entropy(model.transformer.logits(hidden), words, reduction="none")
        losses += of_words[~seen].tolist()
    n_words = int((target != PAD).sum())
    assert loss.item() / n_words == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert [n.item() for n in statistics["loss"]] == pytest.approx([sum(losses), len(losses)])
    assert [n.item() for n in statistics["revealed"]] == [3, n_words]
    assert [n.item() for n in statistics["wrong"]] == [7, n_words]


def test_without_revealing_it_is_a_cmlm_trained_on_masks_alone() -> None:
    model = glat(start=0.0, end=0.0)
    cmlm = micro("cmlm", options={"inputs": "unobserved"}, dropout=0.0).train()
    cmlm.load_state_dict(model.state_dict())
    source, target = training_batch(12, 5, 9)
    losses = []
    for one in (model, cmlm):
        loss, _ = one(one.example(source, target), progress_of(one))
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for ours, theirs in zip(model.parameters(), cmlm.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_share_falls_from_start_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shares = glat(start=0.5, end=0.3), []

    def glance(example: Example, encoded: object, share: Tensor) -> tuple[Tensor, Tensor]:
        shares.append(share.item())
        return torch.zeros_like(example.mask), torch.tensor(0)

    monkeypatch.setattr(model, "glance", glance)
    example = model.example(*training_batch(8, 6))
    for epoch, epochs in ((0, 4), (2, 4), (4, 4), (9, math.inf)):
        model(example, progress_of(model, epoch, epochs))
    assert shares == pytest.approx([0.5, 0.4, 0.3, 0.5])


def test_nothing_is_revealed_at_validation() -> None:
    model = glat(label_smoothing=0.0).eval()
    example = model.example(*training_batch(8, 6))
    _, statistics = model(example, progress_of(model))
    assert statistics["loss"][1] == example.n_words
    assert "revealed" not in statistics


def test_starts_from_an_autoregressive_model_as_a_cmlm_does() -> None:
    teacher = micro("transformer")
    assert same(micro("glat").weights_from(teacher), micro("cmlm").weights_from(teacher))


def test_decoding_as_text() -> None:
    assert str(Decoding(length_candidates=1, repeats="keep")) == "1 length, repeats kept"


def test_learns_to_reverse() -> None:
    plain = Decoding(length_candidates=1, repeats="keep")
    assert exact_matches(learn("glat", steps=300), plain) > 0.9
