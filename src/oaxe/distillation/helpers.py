"""Processes that translate beside this one: a search for words leaves a GPU waiting for Python."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from oaxe.support.errors import UserError
from oaxe.support.jobs import leave_with_parent


class Helpers:
    def __init__(self, processes: list[SpawnProcess]) -> None:
        self._processes = processes

    def check(self) -> None:
        """Raises UserError if one has failed: what it has taken, nobody does."""
        if any(process.exitcode for process in self._processes):
            raise UserError(
                "a process that helped was killed or failed, perhaps for want of memory (what it "
                "said stands above). What is translated is kept; run the same command with fewer "
                "--processes or a lower --batch-tokens"
            )

    def wait(self) -> None:
        """Until they have nothing left to do."""
        for process in self._processes:
            process.join()
        self.check()


@contextmanager
def helpers(count: int, work: Callable[..., None], *arguments: Any) -> Iterator[Helpers]:
    """``count`` processes do the work with these arguments, all to be pickled, until we leave."""
    spawn = multiprocessing.get_context("spawn")
    target = (work, torch.get_num_threads(), *arguments)  # the last bits depend on threads
    processes = [spawn.Process(target=_help, args=target, daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        yield Helpers(processes)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _help(work: Callable[..., None], threads: int, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the first process ends this one
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    work(*arguments)
