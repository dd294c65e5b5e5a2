"""Hints: both losses by their definition, a teacher that is held but not saved, and learning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from oaxe.decoding.translator import Translator
from oaxe.model.layers import DecoderLayer
from oaxe.support.errors import UserError
from oaxe.systems import System
from oaxe.systems.hint import Decoding, Model, cross_entropy, too_alike, watched, weights
from oaxe.text.symbols import BOS, PAD
from tests.models import micro
from tests.runs import make_data, metrics, same, settings_of, train_small
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch


def pupil(norm: str = "post", **options: Any) -> tuple[Model, System]:
    """In training mode without dropout, and its teacher; all in float64."""
    model, teacher = micro("hint", norm, options=options, dropout=0.0), micro("transformer")
    assert isinstance(model, Model)
    model.learn_from(teacher)
    return model.double().train(), teacher


def test_equal_attention_costs_its_entropy() -> None:
    attention = torch.rand(2, 3, 5).softmax(-1)
    entropy = torch.special.entr(attention).sum(2)
    torch.testing.assert_close(cross_entropy(attention, attention), entropy)
    assert (cross_entropy(attention, torch.rand(2, 3, 5).softmax(-1)) > entropy).all()
    certain = torch.eye(3).unsqueeze(0)
    student = certain.clone().requires_grad_()
    assert cross_entropy(certain, student).sum() == 0
    (gradient,) = torch.autograd.grad(cross_entropy(certain.flip(1), student).sum(), student)
    assert gradient.isfinite().all()


def test_thresholds_switch_the_penalty_off() -> None:
    def at_angle(*cosines: float) -> Tensor:
        """Each state after the first has this cosine with the one before."""
        angles = torch.tensor([1.0, *cosines]).acos().cumsum(0)
        return torch.stack([angles.cos(), angles.sin()], 1).unsqueeze(0)

    student, teacher = at_angle(0.9, 0.9, 0.3, 0.3), at_angle(0.2, 0.8, 0.2, 0.8)
    found = too_alike(student, teacher, above=0.5, below=0.5)
    torch.testing.assert_close(found, torch.tensor([[2.302585, 0, 0, 0]]), atol=1e-4, rtol=1e-4)
    found = too_alike(student, teacher, above=0.2, below=1.0)
    expected = -torch.log(torch.tensor([[0.1, 0.1, 0.7, 0.7]]))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    same_states = torch.ones(1, 2, 4, requires_grad=True)
    penalty = too_alike(same_states, torch.eye(4)[:2].unsqueeze(0), 0.1, 0.9)
    assert penalty.item() == pytest.approx(9.2103, abs=1e-3)
    assert torch.autograd.grad(penalty.sum(), same_states)[0].isfinite().all()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_weights_are_those_that_the_layer_attends_with(norm: str) -> None:
    model = micro("hint", norm, heads=1).double().transformer
    source, target = training_batch(9, 4)
    inputs, encoded = target.masked_fill(target != PAD, 4), model.encode(source)
    layer, given = model.decoder[-1], list[tuple[Tensor, ...]]()
    assert isinstance(layer, DecoderLayer)
    outputs: list[Tensor] = []
    attention: Any = layer.source_attention.sublayer
    layer.source_attention.register_forward_pre_hook(lambda _, args: given.append(args))
    attention.output.register_forward_hook(lambda *args: outputs.append(args[1][0]))
    with watched(model) as seen:
        model.decode(inputs, inputs != PAD, encoded)
    (x, mask, keys_values), (found,) = given[0], seen
    assert not found.masked_select(~encoded.mask.unsqueeze(1)).any()
    torch.testing.assert_close(found.sum(2), torch.ones_like(found[..., 0]))
    values = keys_values[:, :, 1, 0]
    torch.testing.assert_close(found @ values, outputs[0])
    torch.testing.assert_close(weights(layer.source_attention, x, mask, keys_values)[:, 0], found)
    with watched(model) as again:  # nothing is left behind
        pass
    model.decode(inputs, inputs != PAD, encoded)
    assert not again


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_loss_equals_one_sentence_at_a_time(norm: str) -> None:
    """XE, and hints from plain passes of both models without padding: value and gradient."""
    model, teacher = pupil(norm, label_smoothing=0.0, length_weight=0.0)
    source, target = training_batch(12, 12, 5, 9, 12)
    xe, looks, pairs = [], [], list[tuple[Tensor, Tensor]]()
    for s, t in zip(source, target, strict=True):
        s, words = s[s != PAD].unsqueeze(0), t[t != PAD]
        encoded, _ = model.length.encode(model.transformer, s)
        inputs = torch.full((1, len(words)), 4)
        with watched(model.transformer) as seen, watched(teacher.transformer) as theirs:
            hidden = model.transformer.decode(inputs, inputs > 0, encoded)[0]
            read = torch.cat([torch.tensor([BOS]), words[:-1]]).unsqueeze(0)
            states = teacher.transformer.decode(read, read > 0, teacher.transformer.encode(s))[0]
        xe.append(F.cross_entropy(model.transformer.logits(hidden), words, reduction="sum"))
        looks.append(-(theirs[0].detach() * seen[0][:, :, 1:].log()).sum())  # but for LENGTH
        ours, known = (
            [F.cosine_similarity(x[i], x[i + 1], dim=0) for i in range(len(words) - 1)]
            for x in (hidden, states)
        )
        pairs += zip(ours, known, strict=True)
    n = len(pairs) // 2
    middles = (sorted(of)[n - 1 : n + 1] for of in zip(*pairs, strict=True))
    above, below = (sum(of).item() / 2 for of in middles)
    alike = [-(1 - ours).log() for ours, known in pairs if ours >= above and known <= below]
    assert 0 < len(alike) < len(pairs) - 5
    changes = {"states": 0.7, "attention": 0.3, "student_above": above, "teacher_below": below}
    model.options = replace(model.options, **changes)
    loss, statistics = model(model.example(source, target), progress_of(model))
    sums = {"loss": sum(xe), "alike": sum(alike), "looks": sum(looks)}
    total = torch.as_tensor(sums["loss"] + 0.7 * sums["alike"] + 0.3 * sums["looks"])
    torch.testing.assert_close(loss, total)
    for name, number in sums.items():
        assert statistics[name][0].item() == pytest.approx(torch.as_tensor(number).item())
    weights_of = list(model.parameters())
    gradients = [torch.autograd.grad(x, weights_of, materialize_grads=True) for x in (loss, total)]
    torch.testing.assert_close(*gradients)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_teacher_is_no_part_of_the_model() -> None:
    model, teacher = pupil()
    alone = micro("hint")
    assert model.state_dict().keys() == alone.state_dict().keys()
    assert model.n_parameters == alone.n_parameters
    assert next(teacher.parameters()).dtype == torch.float64  # it goes where the model goes
    assert not teacher.training


@pytest.mark.parametrize("system", ["cmlm", "language_model"])
def test_rejects_a_teacher_that_is_not_autoregressive(system: str) -> None:
    model = micro("hint")
    with pytest.raises(UserError, match=f"hint.teacher is a model of the system {system}; it must"):
        model.learn_from(micro(system))


def test_a_run_with_a_teacher(tmp_path: Path) -> None:
    """Trained, continued and saved; the finished model needs no teacher."""
    data = make_data(tmp_path / "text")
    system: dict[str, Any] = {"model__system": "transformer"}
    train_small(settings_of(data, tmp_path / "at", **system, train__steps=3))
    system = {"model__system": "hint", "hint__teacher": str(tmp_path / "at")}
    for name, steps in (("whole", [6]), ("parts", [5, 6])):
        for n in steps:
            changes = system | {"train__steps": n, "train__log_every": 1}
            train_small(settings_of(data, tmp_path / name, **changes))
    found = [load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "parts")]
    assert same(found[0], found[1])
    assert {"alike", "looks"} <= metrics(tmp_path / "whole")[0].keys()
    (tmp_path / "at").rename(tmp_path / "gone")
    assert Translator.from_pretrained(tmp_path / "whole").translate(["1 2 3"])
    with pytest.raises(UserError, match=r"hint.teacher .*at is no folder; train an autoregr"):
        train_small(settings_of(data, tmp_path / "new", **system))
    with pytest.raises(UserError, match=r"hint.teacher is not set; train"):
        train_small(settings_of(data, tmp_path / "new", model__system="hint"))


def test_learns_to_reverse() -> None:
    teacher = learn("transformer", steps=40, label_smoothing=0.0)
    model = learn("hint", steps=150, teacher=teacher, label_smoothing=0.0, states=0.1)
    assert exact_matches(model, Decoding(length_candidates=1, repeats="keep")) > 0.9
