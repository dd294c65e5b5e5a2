"""Work over processes: results in order, few items ahead, and nobody left behind."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from oaxe.support.errors import UserError
from oaxe.support.processes import AHEAD, in_order
from tests.runs import FORKS


@pytest.fixture(autouse=True)
def _quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks of a process that has imported torch; also new processes, with pickled arguments."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKS)


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield
    new = {*threading.enumerate()} - before
    for thread in new:
        thread.join(5)
    assert not any(thread.is_alive() for thread in new)


def late_square(number: int) -> tuple[int, int]:
    time.sleep(0.02 * (number % 3))  # the first of three is done first
    return number * number, os.getpid()


def fail_at(bad: int, number: int) -> int:
    if number == bad:
        raise UserError("no luck")
    return number


def die_at(bad: int, number: int) -> int:
    if number == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_order(workers: int) -> None:
    found = list(in_order(late_square, range(20), workers))
    assert [square for square, _ in found] == [number**2 for number in range(20)]
    pids = {pid for _, pid in found}
    assert pids == {os.getpid()} if workers == 1 else 1 <= len(pids - {os.getpid()}) <= workers


@pytest.mark.parametrize("workers", [1, 2])
def test_few_items_are_read_ahead(workers: int) -> None:
    read = itertools.count()
    with closing(in_order(late_square, read, workers)) as results:
        for taken in range(1, 30):
            next(results)
            ahead = int(repr(read)[len("count(") : -1]) - taken
            assert ahead <= (AHEAD * workers if workers > 1 else 0)


def test_no_items() -> None:
    assert list(in_order(late_square, [], 2)) == []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("bad", [0, 7, 19])
def test_an_error_is_raised_here(workers: int, bad: int) -> None:
    with pytest.raises(UserError, match=r"^no luck$"):
        list(in_order(partial(fail_at, bad), range(20), workers))
    assert_no_children()


def test_an_error_of_the_items() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise UserError("no more")

    with pytest.raises(UserError, match="no more"):
        list(in_order(late_square, items(), 2))
    assert_no_children()


@pytest.mark.parametrize("bad", [0, 7])
def test_a_killed_process_is_explained(bad: int) -> None:
    with pytest.raises(UserError, match=r"one of the 2 worker processes was killed.*fewer workers"):
        list(in_order(partial(die_at, bad), range(20), 2))
    assert_no_children()


def test_leaving_early_ends_the_processes() -> None:
    with closing(in_order(late_square, itertools.count(), 2)) as results:
        next(results)
        assert multiprocessing.active_children()
    assert_no_children()


def assert_no_children() -> None:
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_workers_end_with_a_killed_parent() -> None:
    code = "import time; from oaxe.support.processes import in_order as f; "
    process = subprocess.Popen([sys.executable, "-c", f"{code}list(f(time.sleep, [60] * 4, 2))"])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 3)  # one of them is Python's own
    pids = [*map(int, children.read_text().split())]
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # gone, but for its parent to notice


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
