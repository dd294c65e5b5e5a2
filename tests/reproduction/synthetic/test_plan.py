"""Section 3 from data to tables: all parts, some of them, stopped, and of other settings."""

import csv
import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from oaxe.support.errors import UserError
from reproduction.folder import Folder
from reproduction.jobs import run_jobs
from reproduction.synthetic import plan
from reproduction.synthetic.recipes import METHODS, PRESETS
from reproduction.synthetic.tables import seconds_to
from tests.reproduction.synthetic.test_demo import HERE
from tests.reproduction.synthetic.test_training import QUICK


@pytest.fixture(autouse=True)
def quick_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", QUICK)


def run_quick(out: Path, **options: object) -> str:
    printed = io.StringIO()
    arguments = {"preset": "tiny", "out": out, "seeds": 2, "jobs": 2} | options
    plan.run(**arguments, console=Console(file=printed, width=200))  # type: ignore[arg-type]
    return printed.getvalue()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", QUICK)
        (out / "printed.txt").write_text(run_quick(out))
    return out


def test_all_parts(everything: Path) -> None:
    groups = list(plan.groups(QUICK, seeds=2))
    assert (everything / "printed.txt").read_text().count("done: ") == len(groups) == 22
    with (everything / "synthetic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(group.methods) for group in groups)
    assert {row["method"] for row in rows} == set(METHODS)
    assert {row["part"] for row in rows} == set(plan.PARTS)
    tables = (everything / "synthetic.md").read_text()
    titles = [line for line in tables.splitlines() if line.startswith("**")]
    assert len(titles) == 6 + 2  # tables and charts
    main = [r for r in plan.results(QUICK, 2, everything, "tiny") if r["part"] == "modes"]
    five = [r["exact_match"] for r in main if r["method"] == "xe" and r["modes"] == 5]
    row = next(line for line in tables.splitlines() if line.startswith("| XE |"))
    expected = f"{np.mean(five):.1f} ± {np.std(five, ddof=1):.1f}"
    assert row.split("|")[-2].strip() == expected
    assert (everything / "synthetic.html").read_text().count("<svg") == 2
    charts = list(everything.glob("synthetic-*.png"))
    assert len(charts) == 2
    assert all(chart.stat().st_size > 10_000 for chart in charts)


def test_second_run_does_nothing(everything: Path) -> None:
    written = {path: path.stat().st_mtime_ns for path in everything.rglob("result.json")}
    tables = (everything / "synthetic.md").read_text()
    assert len(written) > 40
    assert "done: " not in run_quick(everything)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    assert (everything / "synthetic.md").read_text() == tables


def test_no_train_names_what_is_missing(everything: Path, tmp_path: Path) -> None:
    printed = run_quick(everything, seeds=3, train=False)
    assert "not there, and made if --no-train is left out: 5-orders-12-numbers" in printed
    assert "modes-seed-3" in printed
    run_quick(tmp_path, train=False)
    assert not list(tmp_path.iterdir())


def test_some_parts(tmp_path: Path) -> None:
    run_quick(tmp_path, seeds=1, parts=["numbers"], methods=["xe"])
    assert len(list(tmp_path.glob("*/tiny/results/xe-seed-1/result.json"))) == 2
    with pytest.raises(UserError, match="there is no part nonsense"):
        run_quick(tmp_path, parts=["nonsense"])
    with pytest.raises(UserError, match="there is no method nonsense"):
        run_quick(tmp_path, methods=["nonsense"])
    with pytest.raises(UserError, match="none of these methods"):
        run_quick(tmp_path, parts=["scratch"], methods=["xe"])


def test_rejects_results_of_other_settings(
    everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", replace(QUICK, lr=0.5))
    with pytest.raises(UserError, match=r"xe-seed-1: optim.lr: 0.001 there, 0.5 here"):
        run_quick(everything)


def test_failing_group_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = next(iter(plan.groups(replace(QUICK, numbers=3), 1, ["numbers"])))
    assert bad.recipe.numbers == 0  # no task at all
    good = next(iter(plan.groups(QUICK, 1, ["scratch"])))
    jobs = [group.job(tmp_path, "tiny") for group in (bad, good)]
    failed = run_jobs(jobs, 1, Console(file=io.StringIO()))
    assert list(failed) == [jobs[0].name]
    assert "at least 2 numbers" in failed[jobs[0].name]
    assert Folder(tmp_path, good.task_name, "tiny").result("oaxe-scratch", 1).exists()


def test_seconds_to_95_count_what_lasts_after_the_switch() -> None:
    def seconds(*scores: float, method: str = "oaxe") -> float | None:
        curve = [{"step": 10 * i, "seconds": i, "exact_match": s} for i, s in enumerate(scores, 1)]
        return seconds_to(95, {"method": method, "xe_updates": 20}, curve)

    assert seconds(0, 0, 90, 96, 99) == 4
    assert seconds(0, 0, 96, 90, 99) == 5
    assert seconds(0, 0, 96, 97, 80) is None
    assert seconds(99, 99, 99) == 3  # what XE had is not OaXE's
    assert seconds(99, 99, 99, method="oaxe-annealed") == 1


def test_resumes_after_ctrl_c(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "reproduction", "synthetic", "--out", "here", "--seeds",
        "1", "--part", "scratch",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    logs = "here/*/tiny/logs/scratch-seed-1.txt"
    while not any("train: step" in log.read_text() for log in tmp_path.glob(logs)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on from here" in out
    assert "Traceback" not in out
    assert list(tmp_path.glob("here/*/tiny/runs/oaxe-scratch-seed-1/checkpoints/step-*"))
