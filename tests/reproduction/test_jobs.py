"""Jobs in processes, with needs, kills and logs."""

import io
import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

from oaxe.support.errors import UserError
from reproduction.jobs import Job, run_jobs
from tests.runs import FORKS


@pytest.fixture(autouse=True)
def _quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of a process that has imported torch; also new processes, with pickled arguments."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKS)


def write_line(path: Path, line: str, console: Console) -> None:
    console.print(line)
    with path.open("a") as file:
        file.write(f"{line}\n")


def write_threads(path: Path, console: Console) -> None:
    path.write_text(str(torch.get_num_threads()))


def fail(console: Console) -> None:
    raise UserError("no luck")


def test_jobs_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "order"
    jobs = [
        Job("c", partial(write_line, path, "c"), tmp_path / "c.txt", frozenset({"a", "b"})),
        Job("b", partial(write_line, path, "b"), tmp_path / "b.txt", frozenset({"a"})),
        Job("bad", fail, tmp_path / "bad.txt"),
        Job("after bad", partial(write_line, path, "x"), tmp_path / "x.txt", frozenset({"bad"})),
        Job("later", partial(write_line, path, "y"), tmp_path / "y.txt", frozenset({"after bad"})),
        Job("a", partial(write_line, path, "a"), tmp_path / "a.txt"),
    ]
    failed = run_jobs(jobs, 2, Console(file=io.StringIO()))
    assert path.read_text().splitlines() == ["a", "b", "c"]
    assert failed["bad"].startswith("no luck")
    assert failed["after bad"] == "needs bad"
    assert failed["later"] == "needs after bad"
    assert (tmp_path / "a.txt").read_text().splitlines() == ["a"]
    assert run_jobs([], 1, Console(file=io.StringIO())) == {}


def die(console: Console) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_job_is_named(tmp_path: Path) -> None:
    jobs = [
        Job("a", partial(write_line, tmp_path / "order", "a"), tmp_path / "a.txt"),
        Job("killed", die, tmp_path / "killed.txt", frozenset({"a"})),
        Job("later", die, tmp_path / "later.txt", frozenset({"killed"})),
    ]
    failed = run_jobs(jobs, 1, Console(file=io.StringIO()))
    assert failed.keys() == {"killed", "later"}
    assert failed["killed"].startswith("a process was killed")
    assert failed["later"] == "not begun"


def test_threads_do_not_depend_on_the_number_of_jobs(tmp_path: Path) -> None:
    cores = os.cpu_count() or 1
    for per_device, threads in ((1, cores), (cores, 1)):
        path = tmp_path / str(per_device)
        job = Job("a", partial(write_threads, path), tmp_path / "log")
        run_jobs([job], per_device, Console(file=io.StringIO()))
        assert path.read_text() == str(threads)


def test_full_disk_for_logs_is_explained(tmp_path: Path) -> None:
    path, full = tmp_path / "order", Path("/dev/full")
    jobs = [
        Job("a", partial(write_line, path, "a"), full),
        Job("bad", fail, full),
        Job("b", partial(write_line, path, "b"), tmp_path / "b.txt"),
    ]
    failed = run_jobs(jobs, 1, Console(file=io.StringIO()))
    expected = "could not write /dev/full: No space left on device; make room there"
    assert failed == {"a": expected, "bad": expected}
    assert path.read_text().splitlines() == ["b"]
