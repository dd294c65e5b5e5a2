"""``oaxe reproduce synthetic``: section 3 of the paper, and some questions beyond it.

OUT/cells/NAME/METHOD.json   one trained and tested model each; what is there is not done again
OUT/results.csv, .md, .html  all of them together
OUT/exact_match.png          the paper's figure: exact match against the number of orders
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from oaxe.support.errors import UserError
from oaxe.support.files import write_whole
from oaxe.support.jobs import Job, run_jobs, what_is_missing
from reproduction.synthetic.experiment import Experiment
from reproduction.synthetic.recipe import METHODS, PRESETS, Recipe
from reproduction.synthetic.results import read_results, write_results

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
        raise what_is_missing(failed)


def keep_to(recipe: Recipe, out: Path) -> None:
    """Refuse a folder that was begun with another recipe."""
    path, content = out / "recipe.json", json.dumps(asdict(recipe), indent=1) + "\n"
    if path.exists() and path.read_text() != content:
        raise UserError(f"{out} holds results of another recipe, see {path}; choose another --out")
    write_whole(path, content)


def train_all(cells: list[Cell], folder: Path, jobs: int, console: Console) -> dict[str, str]:
    """Train in ``jobs`` processes a device; returns what did not succeed and why."""
    work = [
        Job(cell.name, partial(train_cell, cell, folder), folder / cell.name / "log.txt",
            models=len(cell.methods))
        for cell in cells
    ]  # fmt: skip
    return run_jobs(work, jobs, console)


def train_cell(cell: Cell, folder: Path, console: Console) -> None:
    experiment = Experiment(cell.recipe, cell.modes, cell.seed, folder / cell.name, console)
    for method in cell.methods:
        experiment.result(method)
