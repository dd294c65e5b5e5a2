"""Section 3 of the paper, and some questions beyond it.

OUT/synthetic.md, .csv, .html, .png   all models together; the paper's figure among the charts
OUT/TASK/PRESET/                      runs and results of one task, see reproduction.folder
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from oaxe.support.errors import UserError
from reproduction.folder import Folder, Result, read_json
from reproduction.jobs import Job
from reproduction.runner import publish, refuse_other_settings, run_all
from reproduction.synthetic.recipes import METHODS, PRESETS, Recipe
from reproduction.synthetic.tables import flat, report_of
from reproduction.synthetic.training import Training

COMPARED = ("xe", "axe", "oaxe")
PARTS = ("modes", "lengths", "numbers", "switch", "scratch")


@dataclass(frozen=True)
class Group:
    """Models that share their data and their pre-training; one process trains them in turn."""

    part: str
    recipe: Recipe
    modes: int
    seed: int
    methods: tuple[str, ...]

    @property
    def task_name(self) -> str:
        recipe = self.recipe
        return (
            f"{self.modes}-orders-{recipe.numbers}-numbers-{recipe.shortest}-to-{recipe.longest}"
            f"-xe-{recipe.xe_updates}-of-{recipe.updates}"
        )

    def job(self, out: Path, preset: str) -> Job:
        folder, name = Folder(out, self.task_name, preset), f"{self.part}-seed-{self.seed}"
        work = partial(train_group, self, folder)
        full = f"{self.task_name}/{preset}/{name}"
        return Job(full, work, folder.log(name), models=len(self.methods))


def groups(recipe: Recipe, seeds: int, parts: Sequence[str] = PARTS) -> Iterator[Group]:
    """What to train. All parts but "modes" have five orders."""
    every = range(1, seeds + 1)
    if "modes" in parts:
        for seed in every:
            yield Group("modes", recipe, 5, seed, (*COMPARED, "oaxe-pretrained", "oaxe-annealed"))
            for modes in (4, 3, 2):
                yield Group("modes", recipe, modes, seed, COMPARED)
            yield Group("modes", recipe, 1, seed, ("xe",))  # one order is no problem for XE
    if "scratch" in parts:
        for seed in every:
            yield Group("scratch", recipe, 5, seed, ("oaxe-scratch",))
    if "lengths" in parts:
        for factor in (0.5, 1.5, 2):
            longest = max(int(recipe.longest * factor), recipe.shortest)
            yield Group("lengths", replace(recipe, longest=longest), 5, 1, ("oaxe", "xe"))
    if "numbers" in parts:
        for factor in (0.25, 4.0):
            changed = replace(recipe, numbers=int(recipe.numbers * factor))
            yield Group("numbers", changed, 5, 1, ("oaxe", "xe"))
    if "switch" in parts:
        after = recipe.updates - recipe.xe_updates
        for share in (0.2, 0.4, 0.6, 0.8, 1.5):
            before = int(recipe.xe_updates * share)
            changed = replace(recipe, xe_updates=before, updates=before + after)
            yield Group("switch", changed, 5, 1, ("oaxe",))


def run(
    *,
    preset: str,
    out: Path,
    seeds: int,
    jobs: int,
    console: Console,
    train: bool = True,
    parts: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> None:
    """Train and test what is not there yet, then write tables and charts of all parts."""
    for kind, given, known in (("part", parts, PARTS), ("method", methods, METHODS)):
        if unknown := [name for name in given if name not in known]:
            raise UserError(
                f"there is no {kind} {', '.join(unknown)}; there are {', '.join(known)}"
            )
    recipe = PRESETS[preset]
    wanted = []
    for group in groups(recipe, seeds, parts or PARTS):
        refuse_other_settings(differences(group, out, preset), out)
        chosen = tuple(m for m in group.methods if m in (methods or METHODS))
        wanted += [replace(group, methods=chosen)] if chosen else []
    if not wanted:
        raise UserError("these parts have none of these methods; leave one of the two out")
    todo = [group.job(out, preset) for group in map(partial(missing, out, preset), wanted) if group]

    def write() -> None:
        if found := results(recipe, seeds, out, preset):
            publish("synthetic", report_of(found, preset, recipe), out, console)

    run_all(todo, write, out=out, preset=preset, per_device=jobs, train=train, console=console)


def differences(group: Group, out: Path, preset: str) -> dict[Path, list[str]]:
    """Results of other settings; the precision is the device's."""
    folder, found = Folder(out, group.task_name, preset), {}
    for method in group.methods:
        now = partial(group.recipe.settings, method, run="", seed=group.seed, bf16=False)
        path = folder.result(method, group.seed).parent
        found[path] = folder.differences(method, group.seed, now, "train.precision")
    return found


def missing(out: Path, preset: str, group: Group) -> Group | None:
    """The group without methods that have a result."""
    folder = Folder(out, group.task_name, preset)
    methods = [m for m in group.methods if not folder.result(m, group.seed).exists()]
    return replace(group, methods=tuple(methods)) if methods else None


def results(recipe: Recipe, seeds: int, out: Path, preset: str) -> list[Result]:
    """Of all parts, those that are there; flat, see reproduction.synthetic.tables."""
    return [
        flat(result, group.part)
        for group in groups(recipe, seeds)
        for method in group.methods
        if (result := read_json(Folder(out, group.task_name, preset).result(method, group.seed)))
    ]


def train_group(group: Group, folder: Folder, console: Console) -> None:
    training = Training(group.recipe, group.modes, group.seed, folder, console)
    for method in group.methods:
        training.result(method)
