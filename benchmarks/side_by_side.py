"""Several trainers at a time, a process each, on one device."""

import dataclasses
import math
import tempfile
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Any

from benchmarks.experiment import Experiment
from benchmarks.loops import Whole, run_for
from oaxe.support.console import new_console

WARM_UP = 4  # updates: computed, recorded, replayed
PATIENCE = 300.0  # seconds until all processes are ready


def together(
    experiment: Experiment, size: str, update_tokens: int, processes: int, seconds: float
) -> float:
    """Target tokens a second of all of them; RuntimeError if one fails."""
    context = get_context("spawn")
    ready, answers = context.Barrier(processes), context.SimpleQueue()
    lean = dataclasses.replace(experiment)  # without the corpus, if it was opened
    arguments = lean, size, update_tokens, seconds, ready, answers
    workers = [context.Process(target=_train, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = [answers.get() for _ in workers if not answers.empty()]
    problems = [answer for answer in found if isinstance(answer, str)]
    if problems or len(found) < processes:
        reason = problems[0] if problems else "one has died"
        raise RuntimeError(f"{processes} processes at a time: {reason}")
    return math.fsum(found)


def _train(
    experiment: Experiment,
    size: str,
    update_tokens: int,
    seconds: float,
    ready: Barrier,
    answers: Any,
) -> None:
    """Puts its tokens a second, measured while all others train as well; or what went wrong."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings, ranks = experiment.settings(size, update_tokens, folder), experiment.ranks
            system = experiment.new_system(settings)
            loop = Whole(settings, system, experiment.corpus, ranks, new_console())
            try:
                run_for(loop, ranks.device, enough=lambda updates: updates >= WARM_UP)
                ready.wait(PATIENCE)
                turn = run_for(loop, ranks.device, seconds)
            finally:
                loop.close()
        answers.put(turn.tokens / turn.seconds)
    except BrokenBarrierError:
        pass  # another one says why
    except Exception as error:
        ready.abort()
        answers.put(f"{type(error).__name__}: {error}"[:300])
