"""The CMLM: losses and annealing by their plain formula, its start, its advice, and learning."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.losses import annealed_weight
from oaxe.model.masking import IGNORED
from oaxe.search.one_pass import translate_lengths
from oaxe.support.config import build
from oaxe.support.errors import UserError
from oaxe.systems import Example, System, cmlm
from oaxe.systems.cmlm import Decoding, Options
from oaxe.text.symbols import BLANK, LENGTH
from tests.models import emphasise, micro, random_batch
from tests.runs import same
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch

C, LAMBDA, EPOCHS = 1e3, 0.5, 20.0  # XE alone until about epoch 4.7, OaXE alone from epoch 10 on


def plain_losses(model: System, example: Example, loss: Any, smoothing: float) -> dict[str, Tensor]:
    """Sums of XE, the loss and the length loss, from logits that are stored whole."""
    assert isinstance(model, cmlm.Model)
    transformer = model.transformer
    encoded = transformer.encode(F.pad(example.source, (1, 0), value=LENGTH))
    hidden = transformer.decode(example.inputs, example.mask, encoded)
    logits, lengths = transformer.logits(hidden), model.length.output(encoded.hidden[:, 0])
    return {
        "xe": oaxe.xe_loss(logits, example.target, label_smoothing=smoothing, reduction="sum"),
        "loss": loss(logits, example.target),
        "lengths": F.cross_entropy(lengths, example.length, reduction="sum"),
    }


def gradient(model: System, loss: Tensor) -> Tensor:
    """By all parameters."""
    found = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return torch.cat([part.flatten() for part in found])


@pytest.mark.parametrize(
    ("epoch", "phase"),
    [
        (0.0, "xe"),
        (4.5, "xe"),
        (9.0, "both"),
        (9.5, "both"),
        (9.95, "both"),
        (10.0, "loss"),
        (19.9, "loss"),
    ],
)
def test_annealing_equals_the_plain_formula(epoch: float, phase: str) -> None:
    """T_m * XE + (1 - T_m) * OaXE, in value and gradient, whichever of them is computed."""
    options = {
        "loss": {"name": "oaxe", "truncation": 0.02},
        "label_smoothing": 0.1,
        "length_weight": 0.5,
        "annealing": True,
        "annealing_c": C,
        "annealing_lambda": LAMBDA,
    }
    model = micro(options=options)
    example = model.example(*training_batch(12, 6, 9, 11))
    progress = progress_of(model, epoch, EPOCHS)
    assert progress.phase == phase
    t = annealed_weight(epoch, EPOCHS, C, LAMBDA)
    assert t == max(0.0, 1 - C ** (epoch - LAMBDA * EPOCHS))
    assert (t == 1, t == 0) == (phase == "xe", phase == "loss")

    def plain_oaxe(logits: Tensor, target: Tensor) -> Tensor:
        return oaxe.oaxe_loss(logits, target, label_smoothing=0.1, truncation=0.02, reduction="sum")

    plain = plain_losses(model, example, plain_oaxe, 0.1)
    assert plain["loss"].item() < 0.9 * plain["xe"].item()  # so that a wrong weight would show
    words = t * plain["xe"] + (1 - t) * plain["loss"]
    expected = words + 0.5 * plain["lengths"]
    loss, statistics = model(example, progress)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    ours, theirs = gradient(model, loss), gradient(model, expected)
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
    assert statistics["loss"][0].item() == pytest.approx(words.item(), rel=1e-5)
    assert ("truncated" in statistics) == (phase != "xe")
    if phase == "both":
        assert statistics["xe_weight"][0].item() == pytest.approx(t, rel=1e-6)
        assert statistics["xe_weight"][1].item() == 1


def test_part_of_xe_can_be_kept() -> None:
    model = micro(options={"loss": "oaxe", "xe_weight": 0.3, "label_smoothing": 0.0})
    example = model.example(*training_batch(12, 6, 9, 11))

    def plain_oaxe(logits: Tensor, target: Tensor) -> Tensor:
        return oaxe.oaxe_loss(logits, target, reduction="sum")

    plain = plain_losses(model, example, plain_oaxe, 0.0)
    assert plain["loss"].item() < 0.9 * plain["xe"].item()
    expected = 0.3 * plain["xe"] + 0.7 * plain["loss"] + plain["lengths"]
    loss, _ = model(example, progress_of(model))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    ours, theirs = gradient(model, loss), gradient(model, expected)
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_without_annealing_there_is_one_phase() -> None:
    for loss in ("xe", "axe", "oaxe"):
        model = micro(options={"loss": loss})
        assert {model.phase(epoch, 10.0) for epoch in (0.0, 5.0, 9.9)} == {"loss"}


@pytest.mark.parametrize("inputs", [None, "unobserved", "partial-all", "partial-masks"])
@pytest.mark.parametrize("loss", ["xe", "axe", "oaxe"])
def test_loss_equals_that_on_logits(loss: str, inputs: str | None) -> None:
    model = micro(options={"loss": loss, "inputs": inputs, "label_smoothing": 0.2})
    example = model.example(*training_batch(12, 6, 9, 11))
    all_words = int(example.n_words) == int(example.length.sum())
    assert all_words == (inputs in ("unobserved", "partial-all") or (not inputs and loss != "xe"))

    def plain(logits: Tensor, target: Tensor) -> Tensor:
        if loss == "axe":
            mask = target != IGNORED
            return oaxe.axe_loss(logits, target, blank=BLANK, logit_mask=mask, reduction="sum")
        of_logits = oaxe.xe_loss if loss == "xe" else oaxe.oaxe_loss
        return of_logits(logits, target, label_smoothing=0.2, reduction="sum")

    losses = plain_losses(model, example, plain, 0.2)
    expected = losses["loss"] + losses["lengths"]
    found, statistics = model(example, progress_of(model))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    ours, theirs = gradient(model, found), gradient(model, expected)
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
    means = {name: (total / number).item() for name, (total, number) in statistics.items()}
    assert means["loss"] == pytest.approx(losses["loss"].item() / int(example.n_words), rel=1e-5)
    assert means["length_loss"] == pytest.approx(losses["lengths"].item() / 4, rel=1e-5)
    assert 0 <= means["length_accuracy"] <= 1


@pytest.mark.parametrize("loss", ["xe", "axe", "oaxe"])
def test_decoding_removes_blanks_after_axe_only(loss: str) -> None:
    model = emphasise(micro("cmlm", "pre", options={"loss": loss}), BLANK)
    assert isinstance(model, cmlm.Model)
    source = random_batch(9, 3, 6)
    decoding = Decoding(length_candidates=4, repeats="keep", refine_steps=2, length_penalty=0.5)
    options: dict[str, Any] = vars(decoding) | {"remove_blanks": loss == "axe"}
    found = model.translate(source, decoding)
    assert found == translate_lengths(model, source, **options)
    removed = sum(h.length - len(h.tokens) for hypotheses in found for h in hypotheses)
    assert (removed > 0) == (loss == "axe")
    assert model.rows(decoding) == 4


@pytest.mark.parametrize("system", ["transformer", "ctc"])
def test_starts_from_a_model_without_length_with_positions_moved_by_one(system: str) -> None:
    model, teacher = micro(), micro(system)
    theirs, found = teacher.state_dict(), model.weights_from(teacher)
    positions = "transformer.source_positions.weight"  # LENGTH comes before the first word
    assert found[positions][1:].equal(theirs[positions][:-1])
    assert found[positions][0].equal(theirs[positions][0])
    del found[positions], theirs[positions]
    assert same(found, theirs)


def test_starts_from_another_cmlm_as_it_is() -> None:
    model, other = micro(options={"loss": "oaxe"}), micro()
    assert same(model.weights_from(other), other.state_dict())


def test_advice() -> None:
    def advice(means: dict[str, float], from_scratch: bool = True, **options: Any) -> str:
        return micro(options=options).advice(means, from_scratch=from_scratch)

    assert "OaXE from random weights" in advice({}, loss="oaxe")
    assert "cmlm.annealing" in advice({}, loss="oaxe")
    assert not advice({}, loss="oaxe", from_scratch=False)
    assert not advice({}, loss="oaxe", annealing=True)
    assert not advice({}, loss="xe")
    assert not advice({}, loss="axe")
    assert not advice({"loss": 3.0, "truncated": 0.79}, loss="oaxe")
    assert "more than 80% of the words are truncated" in advice({"truncated": 0.81}, loss="oaxe")
    assert not advice({"truncated": 0.9, "xe_weight": 0.5}, loss="oaxe", annealing=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"annealing_c": 1.0}, "annealing_c must be above 1, got 1.0"),
        ({"annealing": True}, "choose another loss than xe"),
        ({"label_smoothing": 1.0}, "label_smoothing must be below 1"),
        ({"annealing_lambda": 1.5}, "annealing_lambda must be at most 1"),
        ({"loss": {"name": "axe", "truncation": 0.1}}, "truncation is an option of oaxe"),
    ],
)
def test_rejects_options_that_contradict(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Options, options)


def test_all_words_are_chosen_at_once_where_repeats_are_forbidden() -> None:
    with pytest.raises(UserError, match=r"repeats: forbid .* refine_steps must be 1, got 4"):
        build(Decoding, {"repeats": "forbid", "refine_steps": 4})


def test_only_annealing_needs_an_end() -> None:
    assert build(Options, {"loss": "oaxe", "annealing": True}).needs_end
    assert not build(Options, {"loss": "oaxe"}).needs_end


@pytest.mark.parametrize(
    ("decoding", "text"),
    [
        (Decoding(), "5 lengths, repeats removed"),
        (Decoding(length_share=0.3), "up to 5 lengths, from 0.3 of the likeliest, repeats removed"),
        (Decoding(1, "keep", 0.5, 0.0, 4), "1 length, repeats kept, 4 passes, length penalty 0.5"),
        (Decoding(repeats="forbid"), "5 lengths, repeats forbidden"),
    ],
)
def test_decoding_as_text(decoding: Decoding, text: str) -> None:
    assert str(decoding) == text


def test_learns_to_reverse_by_xe_then_oaxe() -> None:
    xe = learn("cmlm", steps=250, inputs="unobserved", label_smoothing=0.0)
    then_oaxe = learn("cmlm", steps=50, start=xe, loss="oaxe", label_smoothing=0.0)
    for model in (xe, then_oaxe):
        assert exact_matches(model, Decoding(length_candidates=1, repeats="keep")) > 0.95


def test_learns_to_reverse_by_bags_of_ngrams() -> None:
    model = learn("cmlm", steps=200, loss="bag_of_ngrams", label_smoothing=0.0)
    assert exact_matches(model, Decoding(length_candidates=1, repeats="keep")) > 0.9
