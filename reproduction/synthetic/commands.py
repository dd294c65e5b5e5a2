"""``oaxe demo`` and ``oaxe reproduce synthetic``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from oaxe.support.errors import EXIT_INTERRUPTED


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for result.json and report.html.", file_okay=False)
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of data and models.")] = 1,
) -> None:
    """Watch XE fail and OaXE succeed on numbers in five orders (four minutes on 2 cores)."""
    from oaxe.support.console import new_console
    from reproduction.synthetic.demo import run

    if not run(out, seed, new_console())["finished"]:
        raise typer.Exit(EXIT_INTERRUPTED)


def synthetic(
    preset: Annotated[
        Literal["tiny", "small", "full"],
        typer.Option(help="tiny: a CPU; small: a GPU; full: the paper's size."),
    ] = "tiny",
    out: Annotated[
        Path | None, typer.Option(help="Default: runs/synthetic/PRESET.", file_okay=False)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of what the paper shows.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Processes a GPU, or on the CPU.")] = 1,
    part: Annotated[
        list[str] | None,
        typer.Option(help="modes, lengths, numbers, switch or scratch; default: all."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="xe, axe, oaxe, oaxe-pretrained, ...; default: all."),
    ] = None,
) -> None:
    """Section 3: exact match against the number of orders, for XE, AXE and OaXE.

    The same command goes on where it was stopped; what is done is not done again.
    """
    from oaxe.support.console import new_console
    from reproduction.synthetic.reproduce import run

    run(
        preset=preset,
        out=out or Path("runs/synthetic") / preset,
        seeds=seeds,
        jobs=jobs,
        parts=part or (),
        methods=method or (),
        console=new_console(),
    )
