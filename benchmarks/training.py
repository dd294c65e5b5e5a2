"""``oaxe bench training``: what the trainer adds to a bare loop over batches in memory."""

import dataclasses
import json
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from oaxe.support.environment import environment
from oaxe.text.batches import Update
from oaxe.training.ranks import join
from oaxe.training.run import assemble, gather
from oaxe.training.settings import Settings
from oaxe.training.trainer import Trainer

TURN = 10  # timed updates, until it is the other's turn
UNTIMED = 5  # updates before: the trainer uses up what was loaded during the other's turn


def run(settings: Settings, updates: int, json_path: Path | None, console: Console) -> None:
    """Time updates as the trainer does them, and the same ones in a bare loop over resident data.

    Validation and checkpoints are left out of both: how often they come is a setting. So are CUDA
    graphs, whose recording would fall to one of them.
    """
    never = 10**9
    with tempfile.TemporaryDirectory() as folder:
        settings = dataclasses.replace(
            settings,
            run=folder,
            validation=dataclasses.replace(settings.validation, every=never),
            train=dataclasses.replace(
                settings.train,
                steps=never,
                epochs=0,
                minutes=0.0,
                save_every=never,
                cuda_graphs=False,
            ),
            loss=dataclasses.replace(settings.loss, annealing=False),
        )
        ranks = join()
        trainer, _ = assemble(settings, gather(settings, ranks), ranks, console)
        seconds, waiting, bare, tokens = 0.0, 0.0, 0.0, 0
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
                seconds, bare = seconds + between - started, bare + now(trainer) - between
                tokens += sum(update.n_target_tokens for update in seen)
    result = {
        "environment": environment(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "updates": updates,
        "tokens_per_second": tokens / seconds,
        "tokens_per_second_bare": tokens / bare,
        "share_of_bare": bare / seconds,
        "share_waiting_for_data": waiting / seconds,
    }
    table = Table(title=f"{updates} updates of {tokens / updates:,.0f} target tokens, in turns")
    for header in ("loop", "ms/update", "target tokens/s", "share"):
        table.add_column(header, justify="right")
    for name, duration in (("bare, batches in memory", bare), ("trainer with its data", seconds)):
        figures = f"{duration / updates * 1e3:.1f}", f"{tokens / duration:,.0f}"
        table.add_row(name, *figures, f"{100 * bare / duration:.1f} %")
    console.print(table)
    console.print(f"waiting for data: {100 * waiting / seconds:.2f} % of the time")
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=2) + "\n")


def bare_update(trainer: Trainer, update: Update) -> None:
    """Forward, backward and optimiser; no loader, schedule, log, seed or check."""
    trainer.optimizer.zero_grad()
    for batch in update.batches:
        scale = torch.tensor(1 / batch.n_target_tokens, device=trainer.ranks.device)
        trainer.differentiate(trainer.example(batch), 0.0, scale)
    trainer.optimizer.step()


def now(trainer: Trainer) -> float:
    """The time when the device has done all that it was given."""
    if trainer.ranks.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
