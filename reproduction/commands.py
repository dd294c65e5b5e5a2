"""The commands: one for each table and figure, for the synthetic task, the demonstration."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from oaxe.support.errors import EXIT_INTERRUPTED
from reproduction.tables import NOT_IN_ALL, TABLES

RESUMES = "The same command resumes where it was stopped; what is done is not done again."

Data = Annotated[
    list[str] | None, typer.Option(help="A data set, see `oaxe data list`; again for more columns.")
]
Sets = Annotated[
    Path,
    typer.Option(
        "--folder", "--from", envvar="OAXE_DATA", help="The folder of data sets; filled if empty."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for results and tables.", file_okay=False)]
Seeds = Annotated[int, typer.Option(min=1, help="Repetitions of every experiment.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes a GPU, or on the CPU.")]
Train = Annotated[
    bool,
    typer.Option(
        "--train/--no-train",
        help="With --no-train only show results that are in --out, or else the published ones.",
    ),
]


def add_commands(app: typer.Typer) -> None:
    app.command()(demo)
    app.command()(synthetic)
    for name, table in TABLES.items():
        about = f"{table.paper}: {table.about}"
        default = f"Without --data: {table.dataset}."
        app.command(name, help=f"{about}\n\n{default} {RESUMES}")(table_command(name))
    about = "All tables but latency, those on equal terms, their trials, levers and the best OaXE."
    app.command("all", help=f"{about}\n\n{RESUMES}")(
        table_command(*(name for name in TABLES if name not in NOT_IN_ALL))
    )
    app.command()(pack)
    app.command()(box)


def table_command(*names: str) -> Callable[..., None]:
    def reproduce(
        data: Data = None,
        folder: Sets = Path("data/sets"),
        out: Out = Path("runs/reproduce"),
        preset: Annotated[
            Literal["tiny", "laptop", "small", "paper"],
            typer.Option(
                help="tiny: minutes on a CPU; laptop: hours on one; small: a GPU; paper: its own."
            ),
        ] = "tiny",
        seeds: Seeds = 1,
        jobs: Jobs = 1,
        train: Train = True,
        row: Annotated[
            list[str] | None,
            typer.Option(help="Train this row alone, such as oaxe; again for more; default: all."),
        ] = None,
        beside: Annotated[
            list[str] | None,
            typer.Option("--with", help="Another table, such as raw; what both need is made once."),
        ] = None,
    ) -> None:
        from oaxe.support.console import new_console
        from reproduction.translation import datasets_of, run

        run(
            datasets_of([*names, *(beside or ())], data or ()),
            folder=folder,
            out=out,
            preset=preset,
            seeds=seeds,
            jobs=jobs,
            train=train,
            rows=row or (),
            console=new_console(),
        )

    return reproduce


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for result.json and report.html.", file_okay=False)
    ] = Path("demo"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the data and the models.")
    ] = 1,
) -> None:
    """Translations by the model in the box; then XE fails and OaXE succeeds on numbers in five
    orders (four minutes on 2 cores).
    """
    from oaxe.support.console import new_console
    from reproduction.box import show_translations

    console = new_console()
    show_translations(console)
    from reproduction.synthetic.demo import run  # with torch, which takes longer

    if not run(out, seed, console)["finished"]:
        raise typer.Exit(EXIT_INTERRUPTED)


def synthetic(
    preset: Annotated[
        Literal["tiny", "small", "full", "paper"],
        typer.Option(
            help="tiny: a CPU; small: a GPU; full: the paper's data; paper: its training, too."
        ),
    ] = "tiny",
    out: Out = Path("runs/synthetic"),
    seeds: Seeds = 3,
    jobs: Jobs = 1,
    train: Train = True,
    part: Annotated[
        list[str] | None,
        typer.Option(help="modes, lengths, numbers, switch or scratch; default: all."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="xe, axe, oaxe, oaxe-pretrained, ...; default: all.")
    ] = None,
) -> None:
    """Section 3: exact match against the number of orders, for XE, AXE and OaXE."""
    from oaxe.support.console import new_console
    from reproduction.synthetic.plan import run

    run(
        preset=preset,
        out=out,
        seeds=seeds,
        jobs=jobs,
        train=train,
        parts=part or (),
        methods=method or (),
        console=new_console(),
    )


def pack(
    data: Annotated[list[str], typer.Option(help="A data set; again for more.")],
    out: Out = Path("runs/reproduce"),
) -> None:
    """Pack the results of data sets into the archives that --no-train reads."""
    from reproduction.archive import pack as write_archive

    for dataset in data:
        path = write_archive(out, dataset)
        typer.echo(f"{path}: {path.stat().st_size:,} bytes")


def box(
    run: Annotated[Path, typer.Argument(help="Run of a small one-pass model.", exists=True)],
    data: Annotated[Path, typer.Option(help="Prepared text with a test set.", exists=True)],
    beside: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=RUN", help="A run to score beside it. Can be repeated."),
    ] = None,
    distilled: Annotated[
        bool, typer.Option("--distilled/--raw", help="The text that it was trained on.")
    ] = True,
) -> None:
    """Put a model into the package: export it in 8 bits, score it, write its card."""
    from oaxe.evaluation.outputs import names_and_paths
    from oaxe.support.console import new_console
    from reproduction.box import make

    others = {name: Path(path) for name, path in names_and_paths(beside or ()).items()}
    make(run, data, others, distilled=distilled, console=new_console())
