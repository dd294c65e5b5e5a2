"""Recorded training steps, emulated: test_gpu_training.py replays real ones.

As a graph, an emulated one does nothing while it is recorded, and then reads its inputs and writes
results where they were.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from oaxe.losses import NotFiniteError, annealed_weight
from oaxe.model.graphs import Recorder
from oaxe.systems import Progress, System
from oaxe.training import recordings as recordings_module
from oaxe.training import step as step_module
from oaxe.training.ranks import Ranks
from oaxe.training.recordings import Recordings, Tensors
from oaxe.training.run import assemble, gather, new_system
from oaxe.training.settings import TrainSettings
from oaxe.training.trainer import Trainer
from tests.runs import ANNEALED, OAXE, final_tensors, metrics, same, settings_of, train_small

LONGER = {"train__steps": 40, "validation__every": 20}  # eight epochs of shapes that recur


class Graph:
    def __init__(self, work: Callable[[], Tensors]) -> None:
        self.work, self.replays = work, 0
        self.results: list[Tensor] = []

    def replay(self) -> None:
        self.results[:] = self.work()
        self.replays += 1


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    recorded: list[Graph] = []

    def record(self: Recordings, work: Callable[[], Tensors]) -> tuple[Graph, list[Tensor]]:
        recorded.append(Graph(work))
        return recorded[-1], recorded[-1].results

    def may_record(system: System, settings: TrainSettings, ranks: Ranks) -> bool:
        return settings.cuda_graphs

    monkeypatch.setattr(Recordings, "_record", record)
    monkeypatch.setattr(Recorder, "compute", lambda self, work: work())
    monkeypatch.setattr(recordings_module, "has_room", lambda: True)
    monkeypatch.setattr(step_module, "may_record", may_record)
    return recorded


@pytest.mark.parametrize(
    "changes",
    [
        {},
        OAXE,
        ANNEALED | {"cmlm__annealing_c": 1e5, "cmlm__annealing_lambda": 0.7},
        {"model__system": "transformer", "optim__clip": 1.0},
        {"model__system": "language_model"},
    ],
)
def test_the_same_weights_and_log_as_without(
    changes: dict[str, Any], data: Path, tmp_path: Path, graphs: list[Graph]
) -> None:
    for name, recorded in (("plain", False), ("recorded", True)):
        how = LONGER | {"train__cuda_graphs": recorded} | changes
        train_small(settings_of(data, tmp_path / name, **how))
        assert bool(graphs) == recorded
    assert same(final_tensors(tmp_path / "plain"), final_tensors(tmp_path / "recorded"))
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "recorded")
    assert sum(graph.replays for graph in graphs) > len(graphs)


def test_annealing_follows_its_formula_in_replays(
    data: Path, tmp_path: Path, graphs: list[Graph]
) -> None:
    """The weight of XE changes from update to update, and so from replay to replay."""
    annealed = ANNEALED | {"cmlm__annealing_c": 1e5, "cmlm__annealing_lambda": 0.7}
    train_small(settings_of(data, tmp_path / "run", **LONGER, **annealed, train__log_every=1))
    assert all(graph.replays for graph in graphs)
    records = [record for record in metrics(tmp_path / "run") if record["what"] == "train"]
    weights = [record["xe_weight"] for record in records if "xe_weight" in record]
    assert len(weights) > 10
    expected = [annealed_weight(r["epoch"], 8, 1e5, 0.7) for r in records if "xe_weight" in r]
    assert weights == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("device", "world_size", "changes", "expected"),
    [
        ("cuda", 1, {}, True),
        ("cuda", 1, OAXE, True),
        ("cuda", 1, ANNEALED, True),
        ("cuda", 1, {"model__system": "transformer"}, True),
        ("cuda", 1, {"model__system": "ctc"}, True),
        ("cuda", 1, {"train__cuda_graphs": False}, False),
        ("cuda", 1, {"train__compile": True}, False),
        ("cuda", 1, {"train__recompute": True}, False),
        ("cuda", 2, {}, True),
        ("cpu", 1, {}, False),
    ],
)
def test_when_steps_are_recorded(
    device: str, world_size: int, changes: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, tmp_path / "run", **changes)
    ranks = Ranks(0, world_size, torch.device(device))
    system = new_system(settings, 20)
    assert recordings_module.may_record(system, settings.train, ranks) == expected


def test_a_system_may_say_that_it_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, tmp_path / "run")
    system, ranks = new_system(settings, 20), Ranks(0, 1, torch.device("cuda"))
    monkeypatch.setattr(type(system), "recordable", False)
    assert not recordings_module.may_record(system, settings.train, ranks)


def test_continued_without_them_to_the_same_weights(data: Path, tmp_path: Path) -> None:
    for name, first in (("whole", 40), ("continued", 17)):
        train_small(settings_of(data, tmp_path / name, **(LONGER | {"train__steps": first})))
    how = LONGER | {"train__cuda_graphs": False}
    train_small(settings_of(data, tmp_path / "continued", **how))
    assert same(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "continued"))


def trainer_of(data: Path, tmp_path: Path, **changes: Any) -> Trainer:
    settings = settings_of(data, tmp_path / "run", model__dropout=0.0, **changes)
    (tmp_path / "run").mkdir()
    ranks = Ranks(0, 1, torch.device("cpu"))
    trainer, _ = assemble(settings, gather(settings, ranks), ranks, Console(quiet=True))
    return trainer


def gradients_of(trainer: Trainer, steps: int = 1) -> list[Tensor]:
    """Of one and the same batch, added up over some steps."""
    with trainer.loader() as loader:
        example = trainer.update.example(next(loader).batches[0])
    progress = Progress(
        torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64), "loss"
    )
    for step in range(steps):
        trainer.update.differentiate(example, progress, torch.tensor(0.5), first=step == 0)
    return [p.grad.clone() for p in trainer.system.parameters() if p.grad is not None]


def test_a_shape_is_computed_then_recorded_then_replayed(
    data: Path, tmp_path: Path, graphs: list[Graph]
) -> None:
    """The first batch of an update begins with its gradient, the others add theirs."""
    trainer = trainer_of(data, tmp_path, cmlm__inputs="unobserved")
    once = gradients_of(trainer)
    assert not graphs
    five = gradients_of(trainer, 5)
    assert [graph.replays for graph in graphs] == [1, 3]
    assert once
    for one, all_of_them in zip(once, five, strict=True):
        torch.testing.assert_close(all_of_them, 5 * one)


def test_no_more_graphs_than_there_is_room_for(
    data: Path, tmp_path: Path, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not recorded for want of room is computed, and recorded if there is room again."""
    monkeypatch.setattr(recordings_module, "has_room", lambda: len(graphs) != 3)
    train_small(settings_of(data, tmp_path / "run", **LONGER))
    assert len(graphs) == 3
    assert all(graph.replays > 1 for graph in graphs)
    asked = count(1)
    monkeypatch.setattr(recordings_module, "has_room", lambda: next(asked) > 10)
    train_small(settings_of(data, tmp_path / "later", **LONGER))
    assert next(asked) > 11
    assert len(graphs) > 3
    assert same(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "later"))


def test_goes_on_without_where_recording_fails(
    data: Path, tmp_path: Path, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    record, attempts = Recordings._record, count(1)

    def fails_later(self: Recordings, *given: Any) -> Any:
        if next(attempts) == 4:
            raise RuntimeError("CUDA error: out of memory")
        return record(self, *given)

    train_small(settings_of(data, tmp_path / "plain", **(LONGER | {"train__cuda_graphs": False})))
    monkeypatch.setattr(Recordings, "_record", fails_later)
    _, printed = train_small(settings_of(data, tmp_path / "run", **LONGER))
    assert printed.count("CUDA graphs failed") == 1
    assert "out of memory" in printed
    assert len(graphs) == 3
    assert next(attempts) == 5
    assert same(final_tensors(tmp_path / "plain"), final_tensors(tmp_path / "run"))


def test_costs_that_are_not_finite_are_no_failure_of_recording(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Recordings, *given: Any) -> Any:
        raise NotFiniteError("cost is infinite")

    monkeypatch.setattr(Recordings, "_record", fails)
    with pytest.raises(NotFiniteError):
        gradients_of(trainer_of(data, tmp_path), 3)
