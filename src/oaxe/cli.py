"""The command line. Commands import what they need when they run: ``--help`` must be instant."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe import __version__

app = typer.Typer(
    help="Order-agnostic cross entropy: losses for models that predict all words at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(
    help="Measure, all contenders on the same inputs in one run.", no_args_is_help=True
)
app.add_typer(bench, name="bench")


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the small training run.")] = 0,
) -> None:
    """Show what XE, AXE and OaXE do with "I ate pizza this afternoon" (seconds)."""
    from rich.console import Console

    from oaxe.demo import run

    run(out, seed, Console())


@bench.command()
def losses(
    tokens: Annotated[int, typer.Option(min=1, help="Target tokens in the batch.")] = 131_072,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of each contender.")] = 5,
    steps: Annotated[
        int, typer.Option(min=0, help="Timed training steps of each loss; 0 leaves them out.")
    ] = 15,
    threads: Annotated[
        int | None, typer.Option(min=1, help="torch threads; default: torch's own choice.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    json: Annotated[
        Path | None, typer.Option(help="Also write the figures to this file.", dir_okay=False)
    ] = None,
) -> None:
    """Matching and training step on the CPU: ours, the scipy loop, and peers that are installed.

    Peers: pip install lapx lapjv torch-linear-assignment.
    """
    from rich.console import Console

    if json is not None and not json.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {json.parent}; create it first")

    from oaxe.bench.losses import run

    run(
        tokens=tokens,
        repeats=repeats,
        steps=steps,
        threads=threads,
        seed=seed,
        json_path=json,
        console=Console(),
    )


if __name__ == "__main__":
    app()
