"""``oaxe reproduce synthetic``: section 3 of the paper, and some questions beyond it.

OUT/cells/NAME/METHOD.json   one trained and tested model each; what is there is not done again
OUT/results.csv, .md, .html  all of them together
OUT/exact_match.png          the paper's figure: exact match against the number of orders
"""

import json
import multiprocessing
import os
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from oaxe.errors import UserError
from oaxe.synthetic.experiment import Experiment, StoppedError
from oaxe.synthetic.recipe import METHODS, PRESETS, Recipe
from oaxe.synthetic.results import read_results, write_results
from oaxe.training.checkpoint import write_whole

COMPARED = ("xe", "axe", "oaxe")
PARTS = ("modes", "lengths", "numbers", "switch", "scratch")


@dataclass(frozen=True)
class Cell:
    """Models that share their data and their pre-training; one process trains them in turn."""

    part: str
    recipe: Recipe
    modes: int
    seed: int
    methods: tuple[str, ...]

    @property
    def name(self) -> str:
        recipe = self.recipe
        return (
            f"{self.part}-{self.modes}-orders-{recipe.numbers}-numbers-{recipe.shortest}-to-"
            f"{recipe.longest}-xe-{recipe.xe_updates}-of-{recipe.updates}-seed-{self.seed}"
        )


def plan(recipe: Recipe, seeds: int, parts: Sequence[str] = PARTS) -> Iterator[Cell]:
    """What to train. Everything beyond the number of orders is asked of five orders."""
    numbers = range(1, seeds + 1)
    if "modes" in parts:
        for seed in numbers:
            yield Cell("modes", recipe, 5, seed, (*COMPARED, "oaxe-pretrained", "oaxe-annealed"))
            for modes in (4, 3, 2):
                yield Cell("modes", recipe, modes, seed, COMPARED)
            yield Cell("modes", recipe, 1, seed, ("xe",))  # one order is no problem for XE
    if "scratch" in parts:
        for seed in numbers:
            yield Cell("scratch", recipe, 5, seed, ("oaxe-scratch",))
    if "lengths" in parts:
        for factor in (0.5, 1.5, 2):
            longest = max(int(recipe.longest * factor), recipe.shortest)
            yield Cell("lengths", replace(recipe, longest=longest), 5, 1, ("oaxe", "xe"))
    if "numbers" in parts:
        for factor in (0.25, 4.0):
            changed = replace(recipe, numbers=int(recipe.numbers * factor))
            yield Cell("numbers", changed, 5, 1, ("oaxe", "xe"))
    if "switch" in parts:
        after = recipe.updates - recipe.xe_updates
        for share in (0.2, 0.4, 0.6, 0.8, 1.5):
            before = int(recipe.xe_updates * share)
            changed = replace(recipe, xe_updates=before, updates=before + after)
            yield Cell("switch", changed, 5, 1, ("oaxe",))


def run(
    *,
    preset: str,
    out: Path,
    seeds: int,
    jobs: int,
    parts: Sequence[str] = (),
    methods: Sequence[str] = (),
    console: Console,
) -> None:
    """Train what is not trained yet; of all parts and methods, or of those that are given."""
    for what, given, known in (("part", parts, PARTS), ("method", methods, METHODS)):
        if unknown := sorted({*given} - {*known}):
            raise UserError(f"there is no {what} {', '.join(unknown)}; it is {', '.join(known)}")
    cells = [
        replace(cell, methods=tuple(m for m in cell.methods if m in (methods or METHODS)))
        for cell in plan(PRESETS[preset], seeds, parts or PARTS)
    ]
    cells = [cell for cell in cells if cell.methods]
    if not cells:
        raise UserError("these parts have none of these methods; leave one of the two out")
    (out / "cells").mkdir(parents=True, exist_ok=True)
    keep_to(PRESETS[preset], out)
    failed = train_all(cells, out / "cells", jobs, console)
    results = read_results(out / "cells")
    if results:
        write_results(results, out, preset)
        console.print((out / "results.md").read_text(), highlight=False, markup=False)
        console.print(f"{out / 'results.html'} has the pictures", highlight=False)
    if failed:
        raise UserError(
            "not everything is there; the same command goes on from here. What happened:\n"
            + "\n".join(f"  {name}: {why}" for name, why in failed.items())
        )


def keep_to(recipe: Recipe, out: Path) -> None:
    """Refuse a folder that was begun with another recipe."""
    path, content = out / "recipe.json", json.dumps(asdict(recipe), indent=1) + "\n"
    if path.exists() and path.read_text() != content:
        raise UserError(f"{out} holds results of another recipe, see {path}; choose another --out")
    write_whole(path, content)


def train_all(cells: list[Cell], folder: Path, jobs: int, console: Console) -> dict[str, str]:
    """Train in ``jobs`` processes a device; returns what did not succeed and why."""
    devices = visible_devices()
    workers = min(max(len(devices), 1) * jobs, len(cells))
    spawn = multiprocessing.get_context("spawn")
    seats = spawn.Queue()
    for worker in range(workers):
        seats.put(devices[worker % len(devices)] if devices else "")
    failed: dict[str, str] = {}
    to_do = cells[::-1]
    running: dict[Future[str], Cell] = {}
    with (
        Progress(console=console) as progress,
        ProcessPoolExecutor(workers, spawn, take_seat, (seats, workers)) as pool,
    ):
        models = progress.add_task("models", total=sum(len(cell.methods) for cell in cells))
        try:
            while to_do or running:
                while to_do and len(running) < workers:  # what is queued could not be called back
                    cell = to_do.pop()
                    running[pool.submit(train_cell, cell, folder)] = cell
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    cell, problem = running[done], done.result()
                    del running[done]
                    if problem:
                        failed[cell.name] = problem
                    progress.update(models, advance=len(cell.methods))
                    progress.console.print(f"{problem or 'done'}: {cell.name}", highlight=False)
        except KeyboardInterrupt:  # those that train save and leave by themselves
            failed["everything else"] = "interrupted"
        except BrokenProcessPool:
            failed["everything else"] = "a process was killed; perhaps too little memory for --jobs"
    return failed


def visible_devices() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES: of those that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return allowed.split(",")[:count] if allowed else [str(number) for number in range(count)]


def take_seat(seats: Any, workers: int) -> None:
    """In a new process, before anything asks for a device."""
    if device := seats.get():
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def train_cell(cell: Cell, folder: Path) -> str:
    """Returns what went wrong, or nothing."""
    here = folder / cell.name
    here.mkdir(exist_ok=True)
    with (here / "log.txt").open("a") as log:
        try:
            experiment = Experiment(cell.recipe, cell.modes, cell.seed, here, Console(file=log))
            for method in cell.methods:
                experiment.result(method)
        except StoppedError:
            return "interrupted"
        except Exception as error:  # the other cells go on
            log.write(traceback.format_exc())
            return f"{type(error).__name__}: {error} (see {here / 'log.txt'})"
    return ""
