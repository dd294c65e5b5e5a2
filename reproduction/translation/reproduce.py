"""``oaxe reproduce main`` and the others: section 4 of the paper.

OUT/NAME.md, .csv, .html, .png   each table or figure, the paper's figures beside ours
OUT/DATASET/PRESET/              data, runs and results, see reproduction.translation.place
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from oaxe.decoding.lines import usable_device
from oaxe.evaluation.show import make_folder
from oaxe.support.errors import UserError
from oaxe.support.jobs import INTERRUPTED, run_jobs, what_is_missing
from oaxe.support.tables import markdown
from reproduction.translation.cases import cases
from reproduction.translation.grid import grid
from reproduction.translation.lengths import lengths
from reproduction.translation.output import write_sheet
from reproduction.translation.place import Place
from reproduction.translation.plan import Plan, ancestors
from reproduction.translation.recipe import recipe_of
from reproduction.translation.records import (
    Records,
    lacks_fluency,
    measure_fluency,
    speed_path,
    time_decoding,
)
from reproduction.translation.speeds import speeds
from reproduction.translation.tables import TABLES, TIMED
from reproduction.translation.work import training_set

LAYOUTS = {"grid": grid, "lengths": lengths, "speed": speeds, "cases": cases}
DIVERGENT = {"ja", "zh"}  # from English


def run(
    wanted: Mapping[str, Sequence[str]],
    *,
    folder: Path,
    out: Path,
    preset: str,
    seeds: int,
    jobs: int,
    console: Console,
    train: bool = True,
) -> None:
    """Train and test what the tables need and is not there yet, then write them.

    Args:
        wanted: tables of TABLES, which share what is trained, and the data sets of each.
        folder: that holds data sets.
        jobs: processes a GPU, or on the CPU.
        train: False to write the tables of what is there.
    """
    if unknown := sorted({*wanted} - {*TABLES}):
        raise UserError(f"there is no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    names = dict.fromkeys(chain.from_iterable(wanted.values()))
    places = {d: Place(d, preset, recipe_of(preset, d), out, folder) for d in names}
    tables = {d: [name for name in wanted if d in wanted[name]] for d in places}
    plans = [plan(places[d], tables[d], seeds, jobs) for d in places]
    if not train and any(made.jobs for made in plans):
        missing = list(chain.from_iterable(made.jobs for made in plans))
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        console.print(
            f"not there, and made if --no-train is left out: {', '.join(missing[:10])}{more}",
            highlight=False,
        )
        plans = []
    for made in plans:
        if made.jobs and not made.place.is_prepared("raw"):
            training_set(made.place, console)  # what is wrong with it should be known at once
    make_folder(out)
    todo = list(chain.from_iterable(made.jobs.values() for made in plans))
    if todo:
        logs = " ".join(str(made.place.root / "logs") for made in plans if made.jobs)
        console.print(f"{len(todo)} to do; logs in {logs}", highlight=False)
        if preset != "tiny" and usable_device(None) == "cpu":
            console.print(f"preset {preset} is made for a GPU: without one it may take days")
    failed = run_jobs(todo, jobs, console)
    if INTERRUPTED in failed.values():
        raise what_is_missing(failed)
    try:
        for dataset, place in places.items():
            measure(place, tables[dataset], seeds, console)
        for name, datasets in wanted.items():
            write_table(name, [Records(places[d], seeds) for d in datasets], out, console)
    except OSError as error:
        raise UserError(
            f"a file could not be read or written: {error}; make room in {out}, and run the same "
            "command again"
        ) from error
    console.print("pages: " + " ".join(str(out / f"{n}.html") for n in wanted), highlight=False)
    if failed:
        raise what_is_missing(failed)


def write_table(name: str, all_records: Sequence[Records], out: Path, console: Console) -> None:
    table = TABLES[name]
    sheet = LAYOUTS[table.form](name, table, all_records)
    write_sheet(name, table, sheet, all_records, out)
    for note in sheet.notes:
        console.print(note, highlight=False, markup=False)
    for figures in sheet.tables:
        console.print(markdown(figures), highlight=False, markup=False, soft_wrap=True)


def plan(place: Place, names: Sequence[str], seeds: int, jobs: int) -> Plan:
    """What the tables need of this data set, each thing once."""
    made = Plan(place, jobs)
    systems = list(dict.fromkeys(chain.from_iterable(TABLES[name].systems for name in names)))
    check_settings(place, systems, seeds)
    for seed in range(1, seeds + 1):
        for system in systems:
            if system != "lm":
                made.result(system, seed)
    if "fluency" in names and lacks_fluency(place, TABLES["fluency"].systems, seeds):
        made.run("lm", 1)
    if "speed" in names and not speed_path(place).exists():
        for system in TIMED:
            made.run(system, 1)
    return made


def check_settings(place: Place, systems: Sequence[str], seeds: int) -> None:
    """Refuse results of another recipe: they would stand beside those of this one."""
    problems = [
        f"  {place.result(system, seed).parent}: {', '.join(found)}"
        for system in ancestors(systems)
        for seed in range(1, seeds + 1)
        if (found := place.differences(system, seed))
    ]
    if problems:
        raise UserError(
            "there are results of other settings:\n" + "\n".join(problems) + "\nChoose another "
            f"--out; or remove them, their folders in {place.root / 'runs'}, and what was made "
            "from them"
        )


def measure(place: Place, names: Sequence[str], seeds: int, console: Console) -> None:
    """What wants a machine for itself, or many systems at once."""
    if "fluency" in names:
        measure_fluency(place, TABLES["fluency"].systems, seeds, console)
    if "speed" in names:
        time_decoding(place, seeds, console)


def datasets_of(names: Sequence[str], data: Sequence[str]) -> dict[str, list[str]]:
    """What each table is made of: the data sets that are named, or those that it usually has.

    Among other tables, that of divergent word orders takes only pairs that have them.
    """
    wanted = {name: list(dict.fromkeys(data)) or [TABLES[name].dataset] for name in names}
    if len(names) > 1 and "divergent" in names:
        pairs = [name for name in wanted["divergent"] if {*name.split("-")} & DIVERGENT]
        wanted["divergent"] = pairs
    return {name: datasets for name, datasets in wanted.items() if datasets}
