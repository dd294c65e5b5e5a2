"""Section 4 of the paper: translation.

OUT/NAME.md, .csv, .html, .png   each table or figure, the paper's numbers beside ours
OUT/DATASET/PRESET/              data, runs and results, see reproduction.folder
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from oaxe.support.errors import UserError
from reproduction.archive import unpack
from reproduction.experiments import with_ancestors
from reproduction.folder import Folder
from reproduction.layouts.cases import cases
from reproduction.layouts.latency import latency
from reproduction.layouts.lengths import lengths
from reproduction.layouts.scores import scores
from reproduction.layouts.speed import speed
from reproduction.measurements import (
    measure_fluency,
    measure_latency,
    missing_fluency,
    missing_latency,
    speed_path,
    time_decoding,
)
from reproduction.plan import Plan
from reproduction.recipes import recipe_of
from reproduction.report import Report
from reproduction.results import Results, shown_sets
from reproduction.runner import publish, refuse_other_settings, run_all
from reproduction.steps import Study, training_set
from reproduction.tables import BEYOND, TABLES, TIMED, TIMED_TOO, Row, Table

LAYOUTS = {"scores": scores, "lengths": lengths, "speed": speed, "latency": latency, "cases": cases}
DIVERGENT = {"ja", "zh"}  # from English
CSV_COLUMNS = (
    "by", "dataset", "text", "row", "column", "value", "system", "seed", "preset", "updates",
    "seconds", "commit", "device", "signature", "result",
)  # fmt: skip


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
    rows: Sequence[str] = (),
) -> None:
    """Train and test what the tables need and is not there yet, then write them.

    Args:
        wanted: names of TABLES, which share what is trained, and the data sets of each.
        folder: the folder of data sets.
        jobs: processes a GPU, or on the CPU.
        train: False to write the tables of what is there, or else of what is published.
        rows: train these rows or experiments alone; the tables show all that is there.
    """
    datasets = dict.fromkeys(chain.from_iterable(wanted.values()))
    studies = {d: Study(Folder(out, d, preset), recipe_of(preset, d), folder) for d in datasets}
    if not train:
        for dataset in studies:
            unpack(out, dataset, preset, console)
    tables = {d: [name for name in wanted if d in wanted[name]] for d in studies}
    known = {key for name in wanted for row in TABLES[name].rows for key in keys_of(row)}
    if unknown := sorted({*rows} - known):
        raise UserError(
            f"there is no row {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    plans = [plan(study, tables[d], seeds, jobs, rows) for d, study in studies.items()]
    for made in plans:
        if train and made.jobs and not made.folder.is_prepared("raw"):
            training_set(made.study, console)  # what is wrong with it should be known at once

    def write() -> None:
        for dataset, study in studies.items():
            if "fluency" in tables[dataset]:
                measure_fluency(study, seeds, console)
            if "speed" in tables[dataset]:
                time_decoding(study, seeds, console)
            if train:
                timed = [TABLES[n].experiments for n in tables[dataset] if n in TIMED_TOO]
                measure_latency(study, list(chain.from_iterable(timed)), console)
        for name, of_table in wanted.items():
            results = [Results(studies[dataset].folder, seeds) for dataset in of_table]
            publish(name, report_of(name, results), out, console)

    todo = list(chain.from_iterable(made.jobs.values() for made in plans))
    run_all(todo, write, out=out, preset=preset, per_device=jobs, train=train, console=console)


def plan(
    study: Study, names: Sequence[str], seeds: int, jobs: int, rows: Sequence[str] = ()
) -> Plan:
    """What the tables, or some of their rows, need of this data set, each thing once."""
    made, folder = Plan(study, jobs), study.folder
    experiments = list(dict.fromkeys(chain.from_iterable(TABLES[n].experiments for n in names)))
    every = range(1, seeds + 1)
    refuse_other_settings(
        {
            folder.result(name, seed).parent: study.differences(name, seed)
            for name in with_ancestors(experiments)
            for seed in every
        },
        folder.root,
    )
    known = Results(folder, 1)
    for seed in every:
        for table in names:
            for name in of_seed(TABLES[table], seed, known, rows):
                if name != "lm":
                    made.result(name, seed)
            if seed == 1 and not rows:
                runs_to_measure(made, table, seeds)
    return made


def runs_to_measure(made: Plan, table: str, seeds: int) -> None:
    """Models that a table needs beside results, where what it measures of them is not known."""
    study, folder = made.study, made.folder
    if table == "fluency" and missing_fluency(folder, seeds):
        made.run("lm", 1)
    if table == "speed" and not speed_path(folder).exists():
        for name in TIMED:
            made.run(name, 1)
    if table == "latency":
        for name in missing_latency(folder, TABLES[table].experiments):
            made.run(*study.trained(name, 1))


def of_seed(table: Table, seed: int, known: Results, rows: Sequence[str]) -> list[str]:
    """What a table, or some of its rows, needs of one seed.

    Of trials, further seeds only of the one that was chosen. Which one that is, is known once all
    of them are done: the same command then goes on.
    """
    if seed > table.most_seeds:
        return []
    wanted = table.experiments
    if rows:
        some = {name for row in table.rows if row.key in rows for name in row.experiments}
        wanted = [name for name in wanted if name in some or name in rows]
    if seed == 1:
        return wanted
    chosen = {row: known.chosen(row, of_all=True) for row in table.rows if row.chooses}
    left_out = {name for row in chosen for name in row.experiments} - {*chosen.values(), *rows}
    return [name for name in wanted if name not in left_out]


def keys_of(row: Row) -> set[str]:
    """What a row can be asked for by: its name, or that of an experiment."""
    return {row.key, *row.experiments} if row.experiments else set()


def report_of(name: str, all_results: Sequence[Results]) -> Report:
    """The table in its form, how it was made, and where its numbers come from."""
    table = TABLES[name]
    report = LAYOUTS[table.form](name, table, all_results)
    report.title = f"{table.paper}{' of the paper' * (table.paper != BEYOND)}: {name}"
    report.csv_columns = CSV_COLUMNS
    report.notes = [table.about, *report.notes, *how_made(name, all_results)]
    report.sources = [
        (f"{results.folder.dataset}, {one}, seed {seed}", results.origin(one, seed, *tests))
        for results in all_results
        if (tests := [shown.name for shown in shown_sets(table, results)])
        for one in table.experiments
        for seed in results.of(one)
    ]
    return report


def how_made(name: str, all_results: Sequence[Results]) -> list[str]:
    """The command, and what a reader must know of the numbers."""
    table, folders = TABLES[name], [results.folder for results in all_results]
    data = "".join(f" --data {folder.dataset}" for folder in folders)
    preset, seeds = folders[0].preset, len(all_results[0].seeds)
    command = f"python -m reproduction {name}{data} --preset {preset} --seeds {seeds}"
    n_seeds = {
        results.folder.dataset: {n_seeds_of(table, results, one) for one in table.experiments} - {0}
        for results in all_results
    }
    found = ", ".join(f"{d} {span(n)}" for d, n in n_seeds.items() if n) or "none"
    several = max(chain.from_iterable(n_seeds.values()), default=0) > 1
    p = ", the largest p-value, 1 where seeds disagree on which system is better"
    p *= any(column.kind == "p" for column in table.columns)
    spread = f"; mean ± standard deviation{p}" if several else ""
    tiny = ["The preset tiny shows that everything works; its numbers mean nothing."]
    return [
        command,
        f"Seeds: {found}{spread}.",
        *trials_done(table, all_results),
        *(tiny if preset == "tiny" else []),
    ]


def trials_done(table: Table, all_results: Sequence[Results]) -> list[str]:
    """A sentence about the trials among which validation chose, if there are any."""
    tried = {
        f"{len(done)} of {len(row.experiments)}"
        for results in all_results
        for row in table.rows
        if row.chooses and (done := [one for one in row.experiments if results.of(one)])
    }
    return [f"Trials of a system: {', '.join(sorted(tried))}."] if tried else []


def n_seeds_of(table: Table, results: Results, name: str) -> int:
    """Seeds of an experiment; perplexity may be known of fewer of them."""
    if any(column.measure == "perplexity" for column in table.columns):
        return len(results.values(name, "perplexity", "test"))
    return len(results.of(name))


def span(numbers: set[int]) -> str:
    return f"{min(numbers)} to {max(numbers)}" if len(numbers) > 1 else str(*numbers)


def datasets_of(names: Sequence[str], data: Sequence[str]) -> dict[str, list[str]]:
    """The data sets of each table: those that are named, or the one that it usually has.

    Among other tables, that of divergent word orders takes only pairs that have them.
    """
    if unknown := sorted({*names} - {*TABLES}):
        raise UserError(f"there is no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    wanted = {name: list(dict.fromkeys(data)) or [TABLES[name].dataset] for name in names}
    if len(names) > 1 and "divergent" in names:
        pairs = [name for name in wanted["divergent"] if {*name.split("-")} & DIVERGENT]
        wanted["divergent"] = pairs
    return {name: datasets for name, datasets in wanted.items() if datasets}
