"""Jobs in processes, several on each GPU; Ctrl-C lets the running ones save and stop."""

import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from rich.console import Console
from rich.progress import Progress

from oaxe.support.console import new_console
from oaxe.support.errors import EXIT_INTERRUPTED, UserError, listed
from oaxe.support.processes import begin_worker, handled

INTERRUPTED = "interrupted"


class StoppedError(Exception):
    """The user stopped the job; it can be resumed from what is on the disk."""


@dataclass(frozen=True)
class Job:
    """Work that one process does without a break."""

    name: str
    work: Callable[[Console], object]  # can be pickled; raises StoppedError where Ctrl-C ended it
    log: Path  # where the console writes
    needs: frozenset[str] = frozenset()  # names of jobs that must be done before
    models: int = 1  # steps of the progress bar


def run_jobs(jobs: Sequence[Job], per_device: int, console: Console) -> dict[str, str]:
    """Do the jobs in ``per_device`` processes a device; returns the failed ones and why.

    The next job is the first in the list that can begin.
    """
    if not jobs:
        return {}
    devices = visible_devices()
    most_workers = max(len(devices), 1) * per_device
    workers = min(most_workers, len(jobs))
    # Threads, on which the last bits depend, are as many however few jobs are left.
    threads = max(1, (os.cpu_count() or 1) // most_workers)
    spawn = multiprocessing.get_context("spawn")
    to_take = spawn.Queue()  # a device for each worker
    for worker in range(workers):
        to_take.put(devices[worker % len(devices)] if devices else "")
    failed: dict[str, str] = {}
    waiting = list(jobs)
    running: dict[Future[str], Job] = {}
    with (
        Progress(console=console) as progress,
        ProcessPoolExecutor(workers, spawn, take_device, (to_take, threads)) as pool,
        handled(signal.default_int_handler, signal.SIGTERM),
    ):
        bar = progress.add_task("models", total=sum(job.models for job in jobs))
        try:
            while waiting or running:
                fail_without_needs(waiting, failed)
                while len(running) < workers and (job := next_job(waiting, running.values())):
                    running[pool.submit(perform, job)] = job
                    waiting.remove(job)  # not earlier: queued jobs cannot be cancelled
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    problem = done.result()
                    job = running.pop(done)
                    if problem:
                        failed[job.name] = problem
                    progress.update(bar, advance=job.models)
                    progress.console.print(f"{problem or 'done'}: {job.name}")
        except KeyboardInterrupt:  # running jobs save and stop by themselves
            failed["everything else"] = INTERRUPTED
            for child in multiprocessing.active_children():  # a terminal has done so already
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)
        except BrokenProcessPool:
            why = "a process was killed, this or another; perhaps too little memory for --jobs"
            failed |= {job.name: why for job in running.values()}
            failed |= {job.name: "not begun" for job in waiting}
    return failed


def next_job(waiting: Sequence[Job], running: Collection[Job]) -> Job | None:
    """The first whose needs are done."""
    ahead = {job.name for job in (*waiting, *running)}
    return next((job for job in waiting if not job.needs & ahead), None)


def fail_without_needs(waiting: list[Job], failed: dict[str, str]) -> None:
    """Move jobs whose needs have failed from ``waiting`` to ``failed``."""
    while hopeless := [job for job in waiting if job.needs & failed.keys()]:
        for job in hopeless:
            waiting.remove(job)
            failed[job.name] = f"needs {', '.join(sorted(job.needs & failed.keys()))}"


def visible_devices() -> list[str]:
    """The devices that this process may use, by their names in CUDA_VISIBLE_DEVICES."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return allowed.split(",")[:count] if allowed else [str(number) for number in range(count)]


def take_device(to_take: Any, threads: int) -> None:
    """In a new process, before anything asks for a device."""
    begin_worker()
    torch.set_num_threads(threads)
    if device := to_take.get():
        os.environ["CUDA_VISIBLE_DEVICES"] = device


def perform(job: Job) -> str:
    """Returns what went wrong, or ""."""
    try:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("a", encoding="utf-8") as log:
            return attempt(job, log)
    except OSError as error:  # a full disk has no room for a log either
        return f"could not write {job.log}: {error.strerror}; make room there"


def attempt(job: Job, log: TextIO) -> str:
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        job.work(new_console(log))
    except (StoppedError, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:  # the other jobs go on
        log.write(traceback.format_exc())
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return f"{kind}{error} (see {job.log})"
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()  # the next job may need the memory of this one
        torch.cuda.empty_cache()
    return ""


def what_is_missing(failed: dict[str, str]) -> UserError:
    error = UserError(
        "not everything is there; the same command goes on from here. What happened:"
        + listed(f"{name}: {why}" for name, why in failed.items())
    )
    if INTERRUPTED in failed.values():
        error.exit_code = EXIT_INTERRUPTED
    return error
