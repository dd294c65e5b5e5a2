"""The translation tables after a signal: the same command resumes, to the same weights."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reproduction.test_translation import DATASET, make_sets

# One experiment on raw data, long enough to be interrupted; the same command in every process.
PROGRAM = """
import sys
from dataclasses import replace
from oaxe.commands.app import run
from reproduction.__main__ import app
from reproduction.recipes import ANY, PRESETS
from reproduction.tables import TABLES, rows
from tests.reproduction.test_translation import MICRO, SHORT
PRESETS["tiny"][ANY] = replace(MICRO, cmlm=replace(SHORT, steps=40))
TABLES["ncm"] = replace(TABLES["ncm"], rows=rows("cmlm-raw"))
sys.argv = ["reproduction", "ncm", "--data", "tatoeba-en-de", "--folder", "sets"]
run(app)
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "src")])
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=folder, env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    make_sets(folder / "sets")
    process = start(folder)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    return folder


@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        (signal.SIGINT, True),
        (signal.SIGTERM, False),
        (signal.SIGKILL, True),
        (signal.SIGKILL, False),
    ],
    ids=["ctrl-c", "sigterm to the parent alone", "kill -9", "kill -9 of the parent alone"],
)
def test_resumes_to_same_weights(
    number: int, to_all: bool, undisturbed: Path, tmp_path: Path
) -> None:
    make_sets(tmp_path / "sets")
    process = start(tmp_path)
    folder = tmp_path / "runs/reproduce" / DATASET / "tiny"
    log, deadline = folder / "logs/cmlm-raw-seed-1.txt", time.monotonic() + 60
    while not (log.exists() and "train: step 10" in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if to_all:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert "Traceback" not in out
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "the same command goes on from here" in out
        assert list(folder.glob("runs/cmlm-raw-seed-1/checkpoints/step-*"))
    assert not (folder / "results/cmlm-raw-seed-1").exists()
    again = start(tmp_path)
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0, out
    path = Path("runs/reproduce") / DATASET / "tiny/results/cmlm-raw-seed-1"
    found, expected = (
        json.loads((where / path / "result.json").read_text())["tests"]["test"]["model"]["crc32"]
        for where in (tmp_path, undisturbed)
    )
    assert found == expected
