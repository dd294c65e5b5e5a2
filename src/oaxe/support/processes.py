"""Work in several processes, which end with this one; their results come in order."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from oaxe.support.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 2  # items for each process that may wait, or have results that wait

_work: Callable[[Any], Any]  # of a worker


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """``map(work, items)`` in several processes; with 1, in this one.

    Memory does not grow with the number of items: few of them are read ahead. An error of ``work``
    is raised here, and leaving early (``contextlib.closing``) ends the processes.

    Args:
        work: can be pickled; each process gets it once. Items and results are pickled as well.

    Raises:
        UserError: a process was killed.
    """
    if workers == 1:
        yield from map(work, items)
        return
    spawn = multiprocessing.get_context("spawn")  # the same on all platforms
    with ProcessPoolExecutor(workers, spawn, _begin, (work,)) as pool:
        waiting = deque[Future[Result]]()
        try:
            for item in items:
                with _ctrl_c_waits():
                    waiting.append(pool.submit(_perform, item))
                if len(waiting) > AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                f"one of the {workers} worker processes was killed or did not start, perhaps for "
                "lack of memory (its own message may stand above); run the same command with "
                "fewer workers"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object], *signals: int) -> Iterator[None]:
    """Within, these signals go to this handler; Python lets only the main thread handle any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def begin_worker() -> None:
    """In a new process: ignore Ctrl-C, which the parent handles, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """End this process with its parent, even if that is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Holds Ctrl-C back while a process starts, which inherits that until its imports are done.

    The mask is for the new process. This one also needs a handler: another of its threads may
    receive the signal, and Python would then interrupt the main thread.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    heard: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number)) if is_main else 0
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(signal.SIGINT, handler)
            if heard and callable(handler):
                handler(signal.SIGINT, None)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    begin_worker()
    _work = work


def _perform(item: Any) -> Any:
    return _work(item)
