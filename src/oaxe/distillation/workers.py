"""Processes that translate beside this one: on a CPU, one a core is faster than one for all."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from oaxe.support.errors import UserError
from oaxe.support.processes import begin_worker


@contextmanager
def workers(
    count: int, work: Callable[..., None], *arguments: Any
) -> Iterator[Sequence[SpawnProcess]]:
    """Run ``work(*arguments)``, which can be pickled, in more processes; leaving kills them."""
    spawn = multiprocessing.get_context("spawn")
    target = (work, torch.get_num_threads(), *arguments)  # the last bits depend on threads
    processes = [spawn.Process(target=_work, args=target, daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def check(processes: Sequence[SpawnProcess]) -> None:
    """Raises UserError if one has failed: its shard would stay without translation."""
    if any(process.exitcode for process in processes):
        raise UserError(
            "a worker process was killed or failed, perhaps for lack of memory (its own message "
            "stands above). Finished translations are kept; run the same command with fewer "
            "--processes or a lower --batch-tokens"
        )


def _work(work: Callable[..., None], threads: int, *arguments: Any) -> None:
    begin_worker()
    torch.set_num_threads(threads)
    work(*arguments)
