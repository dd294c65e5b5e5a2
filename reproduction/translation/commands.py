"""One command for each table and figure."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from reproduction.translation.tables import TABLES

GOES_ON = "The same command goes on where it was stopped; what is done is not done again."

Data = Annotated[
    list[str] | None,
    typer.Option(help="A data set, see `oaxe data list`; again for more columns."),
]
Folder = Annotated[
    Path,
    typer.Option(
        "--folder", "--from", envvar="OAXE_DATA", help="That has data sets, or is to have them."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for results and tables.", file_okay=False)]
Preset = Annotated[
    Literal["tiny", "small", "paper"],
    typer.Option(help="tiny: minutes on a CPU, to try it; small: a GPU; paper: its settings."),
]
Seeds = Annotated[int, typer.Option(min=1, help="Repetitions of every system.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes a GPU, or on the CPU.")]
Trains = Annotated[
    bool, typer.Option("--train/--no-train", help="Or only show the results that are there.")
]


def add_commands(group: typer.Typer) -> None:
    for name, table in TABLES.items():
        about = f"{table.paper}: {table.about}"
        default = f"Without --data: {table.dataset}."
        group.command(name, help=f"{about}\n\n{default} {GOES_ON}")(command(name))
    about = "Everything in section 4, each system trained once."
    group.command("all", help=f"{about}\n\n{GOES_ON}")(command(*TABLES))


def command(*names: str) -> Callable[..., None]:
    def reproduce(
        data: Data = None,
        folder: Folder = Path("data/sets"),
        out: Out = Path("runs/reproduce"),
        preset: Preset = "tiny",
        seeds: Seeds = 1,
        jobs: Jobs = 1,
        train: Trains = True,
    ) -> None:
        from oaxe.support.console import new_console
        from reproduction.translation.reproduce import datasets_of, run

        run(
            datasets_of(names, data or ()),
            folder=folder,
            out=out,
            preset=preset,
            seeds=seeds,
            jobs=jobs,
            train=train,
            console=new_console(),
        )

    return reproduce
