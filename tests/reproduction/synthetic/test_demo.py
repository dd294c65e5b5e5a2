"""The demonstration: to its end, and stopped."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from oaxe import Order, oaxe_loss
from oaxe.model.masking import IGNORED
from reproduction.folder import Folder
from reproduction.jobs import StoppedError
from reproduction.synthetic import demo
from reproduction.synthetic.demo_text import verdict
from reproduction.synthetic.training import Training
from tests.reproduction.synthetic.test_task import by_slicing
from tests.reproduction.synthetic.test_training import QUICK

ROOT = Path(__file__).parents[3]
# Subprocesses run this checkout from any folder.
HERE = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}


def test_the_matrix_shows_another_order_than_the_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is one: here every order is that of the target, and from row 3 on its reverse."""

    def as_wanted(logits: Tensor, target: Tensor, **how: Any) -> tuple[Tensor, Order]:
        found, order = oaxe_loss(logits, target, **how)
        for row, words in enumerate(target):
            kept = torch.arange(int(words.ne(IGNORED).sum()))
            order.positions[row, : len(kept)] = kept.flip(0) if row >= 3 else kept
        return found, order

    monkeypatch.setattr(demo, "oaxe_loss", as_wanted)
    console = Console(file=io.StringIO())
    training = Training(QUICK, 5, 3, Folder(tmp_path, "synthetic", "demo"), console)
    matrix = demo.matching(training, training.new_model("xe", training.pretrained()).eval())
    found = [matrix["target"][column] for column in matrix["order"]]
    right = by_slicing(matrix["source"])
    assert matrix["target"] == right[matrix["ordering"]]
    assert found == matrix["target"][::-1] != matrix["target"]
    assert found in right.values()


def test_writes_a_result_and_a_page(tmp_path: Path) -> None:
    printed = io.StringIO()
    result = demo.run(tmp_path / "out", 3, Console(file=printed, width=100), QUICK)
    assert json.loads((tmp_path / "out/result.json").read_text()) == result
    assert set(result["scores"]) == {"xe", "oaxe"}
    for scores in result["scores"].values():
        assert 0 <= scores["exact_match"] <= 100
        assert 0 <= scores["repetition"] <= 100
    assert result["finished"]
    assert result["seconds"] > 0
    matrix = result["matrix"]
    assert sorted(matrix["order"]) == list(range(len(matrix["target"])))
    assert matrix["target"] == by_slicing(matrix["source"])[matrix["ordering"]]
    assert "<svg" in (tmp_path / "out/report.html").read_text()
    assert "exact match" in printed.getvalue()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.html",
        "result.json",
    ]


def test_stopped_demo_keeps_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Training, method: str) -> None:
        raise StoppedError

    monkeypatch.setattr(Training, "result", stopped)
    result = demo.run(tmp_path, 1, Console(file=io.StringIO()), QUICK)
    assert not result["finished"]
    assert result["scores"] == {}
    assert result["curves"]["xe"][-1]["step"] == QUICK.xe_updates
    assert "stopped before its end" in (tmp_path / "report.html").read_text()


def test_ctrl_c_leaves_a_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "reproduction", "demo", "--out", "here"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("valid: step 25"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait(60) == 130
    assert "Traceback" not in rest
    result = json.loads((tmp_path / "here/result.json").read_text())
    assert not result["finished"]
    assert result["curves"]["xe"][0]["step"] == 25
    assert (tmp_path / "here/report.html").exists()


def test_example_in_the_readme() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("source "))
    source = [int(word) for word in lines[start].split()[1:]]
    for line in lines[start + 1 : start + 3]:
        words = line.split()
        output = [int(word) for word in words[1 : 1 + len(source)]]
        assert verdict(output, source) == " ".join(words[1 + len(source) :])
