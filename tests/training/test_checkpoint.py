"""Checkpoints come back as they were written, or say that they do not."""

import errno
import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oaxe.support.checksums import checksum_of
from oaxe.support.errors import UserError
from oaxe.support.files import write_whole
from oaxe.training.checkpoint import (
    DamagedError,
    average_tensors,
    checkpoints,
    load_checkpoint,
    load_newest,
    load_optimizer,
    optimizer_tensors,
    remove_others,
    save_checkpoint,
)
from tests.runs import FORKS, final_tensors, make_data, same, settings_of, train_small


def some_tensors(seed: int) -> dict[str, dict[str, Tensor]]:
    torch.manual_seed(seed)
    return {
        "model": {"a": torch.randn(3, 4), "b": torch.tensor(7), "t": torch.randn(4, 2).T},
        "optimizer": {"0.step": torch.tensor(2.0)},
    }


def two_checkpoints(folder: Path) -> tuple[Path, Path]:
    first, second = (save_checkpoint(folder, n, some_tensors(n), {"n": n}) for n in (9, 10))
    return first, second


def test_round_trip(tmp_path: Path) -> None:
    state = {"step": 3, "best": [{"step": 1, "score": 1 / 3}], "sums": [0.1, 2.0**-40]}
    path = save_checkpoint(tmp_path / "new" / "folder", 3, some_tensors(0), state)
    assert path.name == "step-00000003"
    tensors, found = load_checkpoint(path)
    assert found == state
    for group, expected in some_tensors(0).items():
        assert same(tensors[group], expected)
    assert os.listdir(path.parent) == [path.name]


def test_adam_continues_bit_for_bit(tmp_path: Path) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        model(torch.randn(8, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(5, 3)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = fresh()
    step(model, optimizer, 1)
    groups = {"model": model.state_dict(), "optimizer": optimizer_tensors(optimizer)}
    path = save_checkpoint(tmp_path, 1, groups, {})
    step(model, optimizer, 2)

    again, its_optimizer = fresh()
    tensors, _ = load_checkpoint(path)
    again.load_state_dict(tensors["model"])
    load_optimizer(its_optimizer, tensors["optimizer"])
    bytes_before = (path / "optimizer.safetensors").read_bytes()
    step(again, its_optimizer, 2)
    assert same(again.state_dict(), model.state_dict())
    assert same(optimizer_tensors(its_optimizer), optimizer_tensors(optimizer))
    assert (path / "optimizer.safetensors").read_bytes() == bytes_before


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def other_format(path: Path) -> None:
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("model.safetensors", cut_off, "model.safetensors has"),
    ("model.safetensors", flip_a_bit, "model.safetensors has"),
    ("model.safetensors", Path.unlink, "model.safetensors is missing"),
    ("optimizer.safetensors", flip_a_bit, "optimizer.safetensors has"),
    ("state.json", cut_off, "state.json has"),
    ("state.json", flip_a_bit, "state.json has"),
    ("manifest.json", cut_off, "JSONDecodeError"),
    ("manifest.json", Path.unlink, "manifest.json is missing"),
    ("manifest.json", other_format, "format 1, this version reads 2"),
    ("manifest.json", lambda path: write_whole(path, "[]"), "TypeError"),
    ("manifest.json", lambda path: write_whole(path, '{"format": 2, "files": 3}'), "Attribute"),
    ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe"), "UnicodeDecodeError"),
    ("manifest.json", lambda path: write_whole(path, "[" * 100_000), "ValueError: maximum recurs"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE)
def test_damage_is_named_and_the_one_before_is_used(
    name: str, damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    first, second = two_checkpoints(tmp_path)
    damage(second / name)
    with pytest.raises(DamagedError, match=message):
        load_checkpoint(second)
    warnings: list[str] = []
    found = load_newest(tmp_path, warnings.append)
    assert found is not None
    assert found[0] == first
    assert found[2] == {"n": 9}
    (warning,) = warnings
    assert str(second) in warning
    assert message in warning


def test_none_and_none_that_is_whole(tmp_path: Path) -> None:
    assert load_newest(tmp_path, print) is None
    for path in two_checkpoints(tmp_path):
        flip_a_bit(path / "state.json")
    with pytest.raises(UserError, match=r"(?s)step-00000010 is damaged.*step-00000009 is damaged"):
        load_newest(tmp_path, lambda _: None)


def test_what_is_half_written_does_not_count(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    shutil.copytree(tmp_path / "step-00000010", tmp_path / ".step-00000011.tmp")
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000009", "step-00000010"]
    remove_others(tmp_path, {10})
    assert os.listdir(tmp_path) == ["step-00000010"]


def test_a_checkpoint_can_be_replaced(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    save_checkpoint(tmp_path, 10, some_tensors(5), {"n": "new"})
    tensors, state = load_checkpoint(tmp_path / "step-00000010")
    assert state == {"n": "new"}
    assert same(tensors["model"], some_tensors(5)["model"])
    assert sorted(os.listdir(tmp_path)) == ["step-00000009", "step-00000010"]


@pytest.mark.parametrize("at", range(1, 7))
def test_a_full_disk_leaves_the_last_one(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = two_checkpoints(tmp_path)
    syncs = iter(range(1, 100))

    def full(_: int) -> None:
        if next(syncs) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"No space left.*is intact.*Make room"):
            save_checkpoint(tmp_path, 11, some_tensors(11), {})
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {"step-00000011"} == {"step-00000009", "step-00000010"}  # 11 only if whole
    found = load_newest(tmp_path, print)
    assert found is not None
    assert found[0].name == ("step-00000011" if at == 6 else second.name)


def _train_with_small_files(data: Path, run: Path, limit: int, answers: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train_small(settings_of(data, run))
    except UserError as error:
        answers.put(str(error))
    else:
        answers.put("")


def test_a_run_on_a_disk_that_fills_up(tmp_path: Path) -> None:
    """Files may not grow beyond a size between that of the weights and that of Adam's state."""
    data = make_data(tmp_path / "digits")
    run = tmp_path / "run"
    train_small(settings_of(data, run, train__steps=4))
    before = final_tensors(run)
    newest = run / "checkpoints/step-00000004"
    limit = (newest / "model.safetensors").stat().st_size + 1000
    assert limit < (newest / "optimizer.safetensors").stat().st_size
    answers = FORKS.SimpleQueue()
    process = FORKS.Process(target=_train_with_small_files, args=(data, run, limit, answers))
    process.start()
    message = answers.get()
    process.join()
    assert "could not write checkpoint" in message
    assert "File too large; step-00000004 is intact" in message
    assert os.listdir(run / "checkpoints") == [newest.name]
    assert same(final_tensors(run), before)
    assert train_small(settings_of(data, run))[0]["step"] == 24


def test_a_full_disk_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics, TensorBoard's files and the finished model can also meet it."""
    data = make_data(tmp_path / "digits", pairs=20, valid=2)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("oaxe.training.log.RunLog.write", full)
    with pytest.raises(UserError, match=r"No space left on device.*room for several.*same command"):
        train_small(settings_of(data, tmp_path / "run", train__steps=3))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    _, second = two_checkpoints(tmp_path)
    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, refuse)
    load_checkpoint(second)
    # A pickle in the place of the weights, with checksums that are right, is refused.
    data = pickle.dumps({"a": 1})
    (second / "model.safetensors").write_bytes(data)
    manifest = json.loads((second / "manifest.json").read_text())
    manifest["files"]["model.safetensors"] = asdict(checksum_of([data]))
    (second / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match="Safetensor"):
        load_checkpoint(second)


def test_average_against_a_hand_computation() -> None:
    groups = [
        {"w": torch.tensor([1.0, 2.0]), "h": torch.tensor([1.0], dtype=torch.bfloat16)},
        {"w": torch.tensor([2.0, -2.0]), "h": torch.tensor([2.0], dtype=torch.bfloat16)},
        {"w": torch.tensor([6.0, 0.3]), "h": torch.tensor([6.0], dtype=torch.bfloat16)},
    ]
    average = average_tensors(groups)
    assert average["w"].tolist() == [3.0, torch.tensor(0.1).item()]
    assert average["h"].dtype == torch.bfloat16
    assert average["h"].item() == 3.0
    # In float64: a float32 sum of these would lose the small one.
    large = average_tensors([{"x": torch.tensor(v)} for v in (2.0**25, 1.0, -(2.0**25))])
    assert large["x"].item() == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="nothing to average"):
        average_tensors([])
