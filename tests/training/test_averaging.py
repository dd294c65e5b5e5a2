"""Averages of the weights: what they are, where they are used, and that training never notices."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oaxe.model.transformer import SIZES
from oaxe.support.errors import UserError
from oaxe.systems import System
from oaxe.training.averaging import Averages
from oaxe.training.checkpoint import load_checkpoint
from oaxe.training.run import load_translator
from oaxe.training.validation import Validation
from tests.gpu import GPU
from tests.runs import SMALL, final_tensors, metrics, same, settings_of, train_on_ranks, train_small

DECAY = 0.8  # reached in update 35
EMA = {"train__ema": 0.5}  # reached in update 8


def plain_averages(weights: list[Tensor], start: Tensor, decay: float) -> list[Tensor]:
    """After each update, in float64, one number after the other."""
    average, found = start.double(), []
    for t, weight in enumerate(weights, 1):
        share = 1 - min(decay, (1 + t) / (10 + t))
        average = (1 - share) * average + share * weight.double()
        found.append(average)
    return found


def two_layers() -> nn.Module:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.Embedding(5, 2))
    module[2].weight.requires_grad = False
    return module


def test_the_average_of_many_updates() -> None:
    module = two_layers()
    averages = Averages(module, DECAY)
    assert list(averages.tensors()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    start = [weight.clone() for weight in averages.weights]
    seen: list[list[Tensor]] = []
    for t in range(1, 60):
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(torch.randn_like(weight))
        averages.prepare(t)
        averages.update()
        seen.append([weight.clone() for weight in averages.weights])
    for number, average in enumerate(averages.tensors().values()):
        expected = plain_averages([weights[number] for weights in seen], start[number], DECAY)[-1]
        torch.testing.assert_close(average.double(), expected, rtol=1e-5, atol=1e-5)
        assert not average.equal(seen[-1][number])


def test_the_start_is_soon_forgotten() -> None:
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(1000.0)
        averages = Averages(module, 0.9999)
        module.weight.fill_(1.0)
    for t in range(1, 11):
        averages.prepare(t)
        averages.update()
    assert averages.tensors()["weight"].item() == pytest.approx(1.0, abs=0.1)  # 1 in 10,000


@pytest.mark.parametrize("how", [None, ValueError, KeyboardInterrupt])
def test_weights_come_back_to_the_same_address(how: type[BaseException] | None) -> None:
    module = two_layers()
    averages = Averages(module, DECAY)
    for average in averages.averages:
        average.normal_()
    own = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    there = [parameter.data_ptr() for parameter in module.parameters()]
    kept = {name: tensor.clone() for name, tensor in averages.tensors().items()}

    def use() -> None:
        with averages.in_use():
            assert same({n: module.state_dict()[n] for n in kept}, kept)
            assert [parameter.data_ptr() for parameter in module.parameters()] == there
            if how is not None:
                raise how

    if how is None:
        use()
    else:
        with pytest.raises(how):
            use()
    assert same(module.state_dict(), own)
    assert same(averages.tensors(), kept)
    assert [parameter.data_ptr() for parameter in module.parameters()] == there


def best_weights(run: Path) -> list[dict[str, Tensor]]:
    return [load_checkpoint(path)[0]["model"] for path in sorted((run / "best").iterdir())]


def test_a_run_validates_and_keeps_its_averages(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validated after each update, so that a run without them tells all weights."""
    every = {"validation__every": 1, "validation__keep": 12, "train__steps": 12}
    seen: list[dict[str, Tensor]] = []
    places: set[tuple[int, ...]] = set()
    run = Validation.run

    def watched(self: Validation, system: System) -> dict[str, float]:
        seen.append({name: tensor.clone() for name, tensor in system.state_dict().items()})
        places.add(tuple(tensor.data_ptr() for tensor in system.parameters()))
        return run(self, system)

    none = {**every, "train__steps": 1, "optim__lr": 0.0, "optim__warmup": 0}
    train_small(settings_of(data, tmp_path / "start", **none))
    _, printed = train_small(settings_of(data, tmp_path / "plain", **every))
    assert "train.ema" not in printed
    monkeypatch.setattr(Validation, "run", watched)
    _, printed = train_small(settings_of(data, tmp_path / "averaged", **every, **EMA))
    assert "averages of the weights, train.ema 0.5" in printed
    assert len(places) == 1

    start, weights, averages = (
        best_weights(tmp_path / name) for name in ("start", "plain", "averaged")
    )
    assert len(weights) == len(averages) == len(seen) == 12
    for name, tensor in start[0].items():
        expected = plain_averages([one[name] for one in weights], tensor, EMA["train__ema"])
        for found, value in zip(averages, expected, strict=True):
            torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-6)
    assert all(same(a, b) for a, b in zip(seen, averages, strict=True))

    plain, averaged = (final_tensors(tmp_path / name) for name in ("plain", "averaged"))
    own = {name: tensor for name, tensor in averaged.items() if not name.startswith("averages.")}
    assert same(own, plain)  # weights and Adam's state: training has not noticed
    assert len(averaged) - len(plain) == len(start[0])
    train, valid = (
        [[r["loss"] for r in metrics(tmp_path / name) if r["what"] == what]
         for name in ("plain", "averaged")]
        for what in ("train", "valid")
    )  # fmt: skip
    assert train[0] == train[1]
    assert valid[0] != valid[1]


def test_a_run_that_was_stopped_ends_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two validations, and within one, when the model has its averages for weights."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    train_small(settings_of(data, whole, **EMA))
    train_small(settings_of(data, run, **EMA, train__steps=7))
    shutil.rmtree(run / "model")
    score = Validation.score

    def interrupted(self: Validation) -> float:
        os.kill(os.getpid(), signal.SIGTERM)
        return score(self)

    with monkeypatch.context() as patch:
        patch.setattr(Validation, "score", interrupted)
        result, _ = train_small(settings_of(data, run, **EMA))
    assert result["stopped"] == "interrupted"
    assert result["step"] == 10
    train_small(settings_of(data, run, **EMA))
    assert same(final_tensors(run), final_tensors(whole))
    # Update 7 was the last of a run, and validated: everything else is as if it never had stopped.
    records = [
        record for record in metrics(run) if (record["what"], record["step"]) != ("valid", 7)
    ]
    for one in (records, expected := metrics(whole)):
        for record in one:
            record.pop("best", None)
    assert records == expected


def test_a_checkpoint_translates_with_its_averages(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    train_small(settings_of(data, tmp_path, **EMA, train__steps=5))
    models = [
        load_translator(str(tmp_path / folder / "step-00000005"), "cpu").system.state_dict()
        for folder in ("checkpoints", "best")
    ]
    assert same(*models)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["model"] == "best checkpoint, step 5"


def test_two_ranks_are_one(data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        **EMA, "model__dropout": 0.0, "cmlm__inputs": "unobserved", "train__steps": 6,
        "validation__every": 3,
    }  # fmt: skip
    train_small(settings_of(data, tmp_path / "one", **changes))
    assert train_on_ranks(settings_of(data, tmp_path / "two", **changes)) == ["", ""]
    one, two = final_tensors(tmp_path / "one"), final_tensors(tmp_path / "two")
    averages = [name for name in one if name.startswith("averages.")]
    assert averages
    for name in averages:  # Adam makes rounding errors larger
        torch.testing.assert_close(two[name], one[name], rtol=2e-4, atol=2e-4)


def test_a_run_keeps_its_setting(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_small(settings_of(data, run, train__steps=4))
    with pytest.raises(UserError, match=r"other settings:\n  train.ema: 0.0 there, 0.5 here\n"):
        train_small(settings_of(data, run, **EMA))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("ema: 0.0", "ema: 0.5"))
    with pytest.raises(UserError, match=r"step-00000004 has no averages.*train.ema=0, or choose"):
        train_small(settings_of(data, run, **EMA))
    with pytest.raises(UserError, match=r"train.ema must be below 1, got 1.0"):
        settings_of(data, run, train__ema=1.0)


def test_averages_of_another_model_are_refused() -> None:
    averages = Averages(two_layers(), DECAY)
    other = {"averages": {**averages.tensors(), "0.bias": torch.zeros(7)}}
    with pytest.raises(UserError, match=r"here has averages of another model:\n  0.bias has shape"):
        averages.load(other, "here")


@pytest.mark.parametrize("mark", [pytest.param(None, marks=GPU)])
def test_a_recorded_update_is_the_same(mark: None) -> None:
    """In a CUDA graph, for which the host never waits."""
    module = two_layers().cuda()
    recorded, plain = Averages(module, DECAY), Averages(module, DECAY)
    start = [average.clone() for average in recorded.averages]
    recorded.prepare(1)
    recorded.update()  # kernels are loaded at their first use, which cannot be recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded.update()
    torch._foreach_copy_(recorded.averages, start)
    torch.cuda.synchronize()
    for t in range(1, 60):
        with torch.no_grad():
            for weight in module.parameters():
                weight.add_(torch.randn_like(weight))
        torch.cuda.set_sync_debug_mode("error")
        try:
            recorded.prepare(t)
            graph.replay()
            plain.prepare(t)
            plain.update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert same(recorded.tensors(), plain.tensors())
