"""A run that was stopped, in whatever way, ends as if it never had been."""

import itertools
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from typer.testing import CliRunner

import oaxe.training.step
import oaxe.training.trainer
from oaxe.commands.app import app
from oaxe.losses import assignment
from oaxe.model.transformer import SIZES
from oaxe.support.errors import UserError
from oaxe.systems import cmlm
from oaxe.training.run import load_translator
from oaxe.training.schedule import learning_rate
from oaxe.training.settings import settings_mapping
from oaxe.training.validation import Validation
from tests.runs import (
    ANNEALED,
    OAXE,
    SMALL,
    final_tensors,
    make_data,
    metrics,
    same,
    settings_of,
    start,
    train_small,
)


@pytest.fixture(scope="module")
def never_stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reference") / "run"
    train_small(settings_of(data, run, **OAXE))
    return run


def assert_same_end(run: Path, reference: Path) -> None:
    assert same(final_tensors(run), final_tensors(reference))
    assert metrics(run) == metrics(reference)
    weights = Path("model/model.safetensors")
    assert (run / weights).read_bytes() == (reference / weights).read_bytes()
    for folder in ("best", "checkpoints"):
        assert sorted(os.listdir(run / folder)) == sorted(os.listdir(reference / folder))
    results = [json.loads((path / "result.json").read_text()) for path in (run, reference)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


def test_20_kills_at_random_moments(data: Path, never_stopped: Path, tmp_path: Path) -> None:
    rng = random.Random(os.getpid())  # other moments every time
    kills = finished = 0
    while kills < 20 or finished == 0:
        settings = settings_of(data, tmp_path / f"run{finished}", **OAXE)
        process = start(settings)
        process.join(rng.uniform(0, 0.8) if kills < 20 else None)
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            continue
        assert process.exitcode == 0
        assert_same_end(Path(settings.run), never_stopped)
        finished += 1


def test_killed_at_every_write(data: Path, never_stopped: Path, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path / "run", **OAXE)
    for count in itertools.count(1):
        process = start(settings, die_at_sync=count)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert count > 15  # starts that got one write further than the one before
    assert_same_end(Path(settings.run), never_stopped)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_from_outside(
    number: int, data: Path, never_stopped: Path, tmp_path: Path
) -> None:
    settings = settings_of(data, tmp_path / "run", **OAXE)
    records = Path(settings.run) / "metrics.jsonl"
    process = start(settings)
    while not (records.exists() and records.read_bytes()):
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(5)
    assert process.exitcode == 0
    assert not (Path(settings.run) / "result.json").exists()
    assert list((Path(settings.run) / "checkpoints").glob("step-*"))
    assert train_small(settings)[0]["step"] == 24
    assert_same_end(Path(settings.run), never_stopped)


def signals_at(
    call: int, function: Callable[..., Any], number: int = signal.SIGTERM
) -> Callable[..., Any]:
    """The function, interrupted in its n-th call."""
    calls = itertools.count(1)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return function(*arguments, **options)

    return wrapped


@pytest.mark.parametrize(
    ("owner", "name", "call", "step"),
    [
        (cmlm.Model, "forward", 1, 0),  # nothing was done: nothing is saved
        (cmlm.Model, "forward", 20, None),  # in the middle of an update, which is done again
        (Validation, "run", 1, 5),  # in a validation, which is made up for
        (Validation, "run", 5, 24),  # in the last one
        (Validation, "score", 2, 10),
        (oaxe.training.step, "learning_rate", 15, 15),  # after the gradients: validated later
        (oaxe.training.step, "learning_rate", 24, 24),  # in the last update
        (oaxe.training.trainer, "save_checkpoint", 2, 5),  # while the best is saved
    ],
)
def test_a_signal_at_a_moment(
    owner: Any,
    name: str,
    call: int,
    step: int | None,
    data: Path,
    never_stopped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_of(data, tmp_path / "run", **OAXE)
    monkeypatch.setattr(owner, name, signals_at(call, getattr(owner, name)))
    result, printed = train_small(settings)
    assert result["stopped"] == "interrupted"
    assert "the same command continues" in printed
    assert step is None or result["step"] == step
    monkeypatch.undo()
    train_small(settings)
    assert_same_end(Path(settings.run), never_stopped)


def test_statistics_survive_stops_in_every_phase(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of the log that mix phases, written by processes that saw one part of them each."""
    fast = {"cmlm__annealing_c": 1e9, "cmlm__annealing_lambda": 0.7, "train__log_every": 12}
    settings, whole = (
        settings_of(data, tmp_path / run, **ANNEALED, **fast) for run in ("run", "whole")
    )
    train_small(whole)
    stops = [0, 5, 10, 11, 15, 20]
    for before, step in itertools.pairwise(stops):
        with monkeypatch.context() as patch:
            rate = signals_at(step - before, learning_rate)
            patch.setattr(oaxe.training.step, "learning_rate", rate)
            assert train_small(settings)[0]["step"] == step
    train_small(settings)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert same(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "whole"))
    first, second = (r for r in metrics(tmp_path / "whole") if r["what"] == "train")
    assert 0 < second["xe_weight"] < 1
    assert {"truncated", "displacement", "length_loss", "loss"} <= first.keys() & second.keys()


def test_the_exit_code_of_ctrl_c(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    forward = signals_at(3, cmlm.Model.forward, signal.SIGINT)
    monkeypatch.setattr(cmlm.Model, "forward", forward)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings_mapping(settings_of(data, tmp_path / "run"))))
    result = CliRunner().invoke(app, ["train", str(config)])
    assert result.exit_code == 130, result.output
    assert "interrupted; the same command continues from here\n" in result.output


def test_a_damaged_checkpoint_falls_back(data: Path, never_stopped: Path, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=14, **OAXE)
    train_small(settings)
    older, newest = sorted((Path(settings.run) / "checkpoints").iterdir())
    assert (older.name, newest.name) == ("step-00000012", "step-00000014")
    weights = newest / "model.safetensors"
    size = weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    settings = settings_of(data, tmp_path / "run", **OAXE)
    _, printed = train_small(settings)
    assert f"{newest} is damaged: model.safetensors has {size:,} bytes with crc32" in printed
    assert f"resumed from {older}" in printed
    # Step 14 was validated as the last one, and is not any more.
    assert_same_end(Path(settings.run), never_stopped)


def test_without_a_whole_checkpoint_it_does_not_start_anew(data: Path, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=8)
    train_small(settings)
    for path in (Path(settings.run) / "checkpoints").iterdir():
        (path / "state.json").unlink()
    with pytest.raises(UserError, match=r"(?s)step-0+8 is damaged: state.json is missing.*Remove"):
        train_small(settings)


def test_other_settings_are_refused(data: Path, tmp_path: Path) -> None:
    train_small(settings_of(data, tmp_path / "run", train__steps=3))
    before = (tmp_path / "run/config.yaml").read_text()
    other = settings_of(data, tmp_path / "run", optim__lr=1e-4, model__norm="pre")
    with pytest.raises(UserError) as caught:
        train_small(other)
    assert "optim.lr: 0.003 there, 0.0001 here" in str(caught.value)
    assert "model.norm: post there, pre here" in str(caught.value)
    assert "steps" not in str(caught.value)
    assert (tmp_path / "run/config.yaml").read_text() == before


def test_a_run_of_an_earlier_version_is_refused(data: Path, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=3)
    train_small(settings)
    config, best = tmp_path / "run/config.yaml", tmp_path / "run/best/step-00000003"
    earlier = {
        "run": settings.run,
        "data": {"folder": settings.data.folder},
        "model": {"kind": "nat", "size": "tiny"},
        "loss": {"name": "oaxe"},
        "train": {"steps": 3},
    }
    config.write_text(yaml.safe_dump(earlier))
    problems = (
        "loss is not an option; did you mean cmlm.loss?",
        "model.kind is not an option; known:",
    )
    with pytest.raises(UserError, match=r"this version of oaxe cannot continue; choose") as error:
        train_small(settings)
    assert all(problem in str(error.value) for problem in problems)
    with pytest.raises(UserError) as error:
        load_translator(str(best), "cpu")
    assert all(problem in str(error.value) for problem in problems)
    assert yaml.safe_load(config.read_text()) == earlier


def test_other_data_are_refused(tmp_path: Path) -> None:
    data = make_data(tmp_path / "digits")
    settings = settings_of(data, tmp_path / "run", train__steps=3)
    train_small(settings)
    shutil.rmtree(data)
    make_data(tmp_path / "digits", pairs=100)
    with pytest.raises(UserError, match="was prepared anew"):
        train_small(settings)


def test_one_process_a_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=3)

    def second(*_: Any) -> None:
        train_small(settings)

    monkeypatch.setattr(Validation, "run", second)
    with pytest.raises(UserError, match="another process is training in"):
        train_small(settings)


def test_starting_a_finished_run_changes_nothing(data: Path, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=6)
    train_small(settings)
    run = Path(settings.run)
    names = ["metrics.jsonl", "model/model.safetensors", "result.json", "config.yaml"]
    before = [(run / name).read_bytes() for name in names]
    result, printed = train_small(settings)
    assert "there is nothing left to train" in printed
    assert result["step"] == 6
    assert [(run / name).read_bytes() for name in names] == before
    assert len(json.loads((run / "environment.json").read_text())) == 2


def test_without_its_checkpoints_a_finished_run_is_not_begun_again(
    data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_small(settings_of(data, run, train__steps=6))
    model = (run / "model/model.safetensors").read_bytes()
    shutil.rmtree(run / "checkpoints")
    for steps in (6, 8):
        with pytest.raises(UserError, match=rf"checkpoints are gone.*train.init_from={run}"):
            train_small(settings_of(data, run, train__steps=steps))
    assert (run / "model/model.safetensors").read_bytes() == model
    again = settings_of(data, tmp_path / "again", train__steps=8, train__init_from=str(run))
    assert train_small(again)[0]["step"] == 8


def test_a_limit_below_what_is_done(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        moment = signals_at(3, learning_rate)
        patch.setattr(oaxe.training.step, "learning_rate", moment)
        assert train_small(settings_of(data, tmp_path / "run"))[0]["step"] == 3
    for _ in range(2):  # without any validation before; the second time there is one
        result, _ = train_small(settings_of(data, tmp_path / "run", train__steps=2))
        assert result["step"] == 3
        assert [r["step"] for r in metrics(tmp_path / "run") if r["what"] == "valid"] == [3]


def test_a_lost_best_checkpoint_is_done_without(data: Path, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=10)
    train_small(settings)
    first, second = sorted((tmp_path / "run/best").iterdir())
    (first / "model.safetensors").unlink()
    result, printed = train_small(settings)
    assert f"{first} is damaged (model.safetensors is missing)" in printed
    assert int(second.name[-2:]) == 10
    assert result["model"] == "best checkpoint, step 10"
    (second / "model.safetensors").unlink()
    with pytest.raises(UserError, match="none of the best checkpoints"):
        train_small(settings)


@pytest.mark.parametrize(("loss", "later"), [("xe", False), ("oaxe", False), ("oaxe", True)])
def test_a_loss_that_is_not_finite_stops_the_run(
    loss: str, later: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This run, and not the next one of the same process."""
    marks = report_later(monkeypatch) if later else torch.zeros(1)
    changes: dict[str, Any] = {"cmlm__loss": loss, "train__save_every": 1}
    if later:  # no second batch in the update that would meet the mark
        changes["data__batch_tokens"] = 400
    settings = settings_of(data, tmp_path / "run", **changes)
    forward, calls = cmlm.Model.forward, itertools.count(1)

    def poisoned(self: cmlm.Model, *arguments: Any) -> Any:
        if next(calls) == 20:
            self.transformer.output_weight.data[9] = float("nan")
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(cmlm.Model, "forward", poisoned)
        with pytest.raises(UserError, match=r"update (\d+).*training pairs \d+, \d+.*optim.lr"):
            train_small(settings)
    tensors = final_tensors(tmp_path / "run")
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert marks.any() == later  # the loss was seen before them
    assert train_small(settings)[0]["step"] == 24


def report_later(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Matching on the CPU marks costs that are not finite, for a later call, as on a GPU."""
    gpu, solve = torch.device("cuda"), assignment._solve_with_scipy
    marks = torch.zeros(1_000, dtype=torch.uint8)

    def marking(cost: Tensor, mask: Tensor | None, by_column: bool) -> tuple[Tensor, int]:
        assert assignment._marks(gpu, len(cost)) is marks
        column, _ = solve(cost, mask, by_column)
        wrong = column[:, :1] == assignment.BAD
        marks[: len(wrong)] |= wrong[:, 0].byte()
        return torch.where(wrong, torch.arange(column.shape[1]), column), 0

    monkeypatch.setattr(assignment, "_marked", {gpu: [marks]})
    monkeypatch.setattr(assignment, "_solver", None)
    monkeypatch.setattr(assignment, "_solve_with_scipy", marking)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return marks


@pytest.mark.parametrize("step", [5, 8])  # where the best are kept, and where a checkpoint is saved
def test_weights_that_are_not_finite_are_not_saved(
    step: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finite loss does not make finite weights; the next loss would come too late."""
    settings = settings_of(data, tmp_path / "run")
    calls = itertools.count(1)

    def rate(number: int, **options: Any) -> float:
        return float("nan") if next(calls) == step else learning_rate(number, **options)

    monkeypatch.setattr(oaxe.training.step, "learning_rate", rate)
    with pytest.raises(UserError, match=rf"update {step} made weights.*training pairs \d+, \d+"):
        train_small(settings)
    kept = [
        path.name
        for name in ("checkpoints", "best")
        for path in (tmp_path / "run" / name).glob("*")
    ]
    assert kept == ["step-00000004", *["step-00000005"] * (step > 5)]
    monkeypatch.undo()
    assert train_small(settings)[0]["step"] == 24


def test_validation_does_not_count_as_training_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(self: Validation) -> float:
        time.sleep(0.5)
        return 0.0

    monkeypatch.setattr(Validation, "score", slow)
    settings = settings_of(data, tmp_path / "run", train__steps=6, validation__every=2)
    result, _ = train_small(settings)
    assert result["seconds"] < 1


def test_more_epochs_continue_a_run(data: Path, tmp_path: Path) -> None:
    for run, all_epochs in (("whole", (2,)), ("continued", (1, 2))):
        for epochs in all_epochs:
            limits = {"train__steps": 0, "train__epochs": epochs}
            train_small(settings_of(data, tmp_path / run, **limits))
    assert same(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "continued"))


def test_limits(data: Path, tmp_path: Path) -> None:
    epochs = settings_of(
        data, tmp_path / "epochs", train__steps=0, train__epochs=2, validation__every=0
    )
    result, _ = train_small(epochs)
    assert result["stopped"] == "2 epochs are done"
    validated = [
        record["step"] for record in metrics(tmp_path / "epochs") if record["what"] == "valid"
    ]
    assert validated == [result["step"] // 2, result["step"]]

    minutes = settings_of(data, tmp_path / "minutes", train__steps=0, train__minutes=0.002)
    result, _ = train_small(minutes)
    assert result["stopped"] == "0.002 minutes are over"
    assert 0.1 <= result["seconds"] < 2
    assert train_small(minutes)[0]["step"] == result["step"]


def test_patience(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([1.0, 3.0, 2.0, 3.0, 9.0])
    monkeypatch.setattr(Validation, "score", lambda self: next(scores))
    settings = settings_of(
        data, tmp_path / "run", validation__every=2, validation__patience=2, validation__average=1
    )
    result, _ = train_small(settings)
    assert result["stopped"] == "no better bleu in 2 validations"
    assert result["step"] == 8
    assert result["bleu"] == 3.0
    assert result["model"] == "best checkpoint, step 4"  # the first of two equals
    assert train_small(settings)[0]["step"] == 8
