"""Tests that must learn: text files in, exact translations of unseen digit strings out."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from oaxe.decoding.translator import Translator
from oaxe.model.transformer import SIZES
from oaxe.text.prepare import prepare
from oaxe.training.run import train
from oaxe.training.settings import build_settings
from tests.systems.digits import SIZE

TASKS: dict[str, Callable[[list[str]], list[str]]] = {
    "copy": list,
    "reverse": lambda digits: digits[::-1],
    "sort": sorted,
}


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with prepared data: digits, and the digits copied, reversed or sorted."""
    folder = tmp_path_factory.mktemp(request.param)
    rng = random.Random(1)
    files = {}
    for split, count in (("train", 6_000), ("valid", 100), ("test", 200)):
        sources = [[str(rng.randrange(10)) for _ in range(rng.randint(2, 5))] for _ in range(count)]
        targets = [TASKS[request.param](digits) for digits in sources]
        files[split] = (folder / f"{split}.source", folder / f"{split}.target")
        for path, side in zip(files[split], (sources, targets), strict=True):
            path.write_text("".join(" ".join(digits) + "\n" for digits in side))
    prepare(
        folder / "data",
        source_language="x-digits",
        target_language="x-digits",
        train=files["train"],
        valid=files["valid"],
        test=files["test"],
        vocab_size=28,  # 7 symbols, 10 digits, 10 digits after a space, the space
    )
    return folder


@pytest.fixture(autouse=True)
def _small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "tiny", SIZE)


def run(folder: Path, name: str, system: str, **changes: dict[str, Any]) -> float:
    """Train; returns the percentage of test sentences that are translated exactly."""
    settings: dict[str, Any] = {
        "run": str(folder / name),
        "data": {"folder": str(folder / "data"), "update_tokens": 512, "batch_tokens": 2_048},
        "model": {
            "system": system, "size": "tiny", "dropout": 0.0, "max_length": 16, "norm": "pre"
        },
        "optim": {"lr": 2e-3, "warmup": 200, "clip": 1.0},
        "validation": {"every": 150},
    }  # fmt: skip
    for section, values in changes.items():
        settings[section] = {**settings.get(section, {}), **values}
    torch.manual_seed(0)
    train(build_settings(settings), Console(quiet=True))
    translator = Translator.from_pretrained(folder / name / "model")
    sources, targets = (
        (folder / f"test.{side}").read_text().splitlines() for side in ("source", "target")
    )
    found = translator.translate(sources)
    return 100 * sum(map(str.__eq__, found, targets)) / len(targets)


def run_cmlm(folder: Path, name: str, loss: str, **changes: dict[str, Any]) -> float:
    """The digits have repeats that decoding must not remove."""
    return run(
        folder,
        name,
        "cmlm",
        cmlm={"loss": loss, "label_smoothing": 0.0, "inputs": "unobserved"},
        decoding={"length_candidates": 1, "repeats": "keep"},
        **changes,
    )


def test_autoregressive_model_learns(task: Path) -> None:
    exact = run(
        task,
        "transformer",
        "transformer",
        transformer={"label_smoothing": 0.0},
        model={"norm": "post"},
        optim={"warmup": 50, "decay": "linear"},
        train={"steps": 450},
    )
    assert exact >= 95


def test_one_pass_model_learns_with_xe_then_oaxe(task: Path) -> None:
    """XE first; then OaXE, which must not lose what XE has learned, from XE's weights."""
    assert run_cmlm(task, "xe", "xe", train={"steps": 400}) >= 90
    oaxe = run_cmlm(
        task,
        "oaxe",
        "oaxe",
        optim={"lr": 2e-4, "warmup": 20},
        train={"steps": 60, "init_from": str(task / "xe")},
    )
    assert oaxe >= 90


@pytest.mark.parametrize("task", ["copy"], indirect=True)
def test_one_pass_model_learns_with_axe(task: Path) -> None:
    """From random weights. On reverse and sort, AXE of delta 1 settles for words left out."""
    assert run_cmlm(task, "axe", "axe", train={"steps": 250}) >= 95
