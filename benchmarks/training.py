"""CPU or GPU: the trainer with its data against a bare loop over batches in memory."""

import dataclasses
import math
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.harness import JsonPath, Report, relative_time
from oaxe.commands.options import Overrides
from oaxe.support.timing import Timing
from oaxe.systems import Progress
from oaxe.text.batches import Update
from oaxe.training.ranks import join
from oaxe.training.run import assemble, gather
from oaxe.training.settings import Settings, load_settings
from oaxe.training.trainer import Trainer

TURN = 10  # timed updates of one loop, then of the other
UNTIMED = 5  # updates before: the trainer uses up what was loaded during the other's turn
BARE, WHOLE = "bare loop", "trainer with its data"


def training(
    configuration: Annotated[Path, typer.Argument(help="YAML file of `oaxe train`.")],
    changes: Overrides = None,
    updates: Annotated[int, typer.Option(min=1, help="Timed updates of each loop.")] = 50,
    json: JsonPath = None,
) -> None:
    """CPU or GPU: the trainer with its data against a bare loop over batches in memory.

    Validation and checkpoints are left out of both: their frequency is a setting. So are CUDA
    graphs, whose recording would fall to one of the two. A system that changes over the run is
    measured as it begins.
    """
    report = Report(json, configuration=str(configuration))
    measure(report, load_settings(configuration, changes or []), updates)


def measure(report: Report, settings: Settings, updates: int) -> None:
    never = 10**9
    validation = dataclasses.replace(settings.validation, every=never)
    train = dataclasses.replace(
        settings.train, steps=never, epochs=0, minutes=0.0, save_every=never, cuda_graphs=False
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(settings, run=folder, validation=validation, train=train)
        ranks = join()
        trainer, _ = assemble(settings, gather(settings, ranks), ranks, report.console)
        seconds: dict[str, list[float]] = {BARE: [], WHOLE: []}  # an update, by turns
        tokens, waiting, whole = 0, 0.0, 0.0
        with trainer.loader() as loader:
            for done in range(0, updates, TURN):
                for _ in range(UNTIMED):
                    trainer.one_update(next(loader))
                seen, started = [], now(trainer)
                for _ in range(min(TURN, updates - done)):
                    asked = time.perf_counter()
                    seen.append(next(loader))
                    waiting += time.perf_counter() - asked
                    trainer.one_update(seen[-1])
                between = now(trainer)
                for update in seen:
                    bare_update(trainer, update)
                seconds[WHOLE].append((between - started) / len(seen))
                seconds[BARE].append((now(trainer) - between) / len(seen))
                whole += between - started
                tokens += sum(update.n_target_tokens for update in seen)
    timings = {name: Timing(values) for name, values in seconds.items()}
    rate = {name: tokens / updates / timing.median for name, timing in timings.items()}
    report.add(
        "training",
        timings,
        {"target tokens/s": rate, "x bare": relative_time(timings, BARE)},
        updates=updates,
        tokens_an_update=tokens / updates,
        share_waiting_for_data=waiting / whole,
    )


def bare_update(trainer: Trainer, update: Update) -> None:
    """Forward, backward and optimiser; no loader, schedule, log, seed or check."""
    device = trainer.ranks.device
    epoch, end = torch.tensor([0.0, math.inf], dtype=torch.float64, device=device)
    progress = Progress(epoch, end, trainer.system.phase(0.0, math.inf))
    trainer.optimizer.zero_grad()
    for batch in update.batches:
        scale = torch.tensor(1 / batch.n_target_tokens, device=device)
        trainer.differentiate(trainer.example(batch), progress, scale)
    trainer.optimizer.step()


def now(trainer: Trainer) -> float:
    """The time when the device has finished its work."""
    if trainer.ranks.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
