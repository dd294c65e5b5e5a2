"""``oaxe train`` and ``oaxe config``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.options import Overrides
from oaxe.support.errors import EXIT_INTERRUPTED, UserError

config = typer.Typer(help="Look at and check configurations of `oaxe train`.", no_args_is_help=True)


def train(
    configuration: Annotated[Path, typer.Argument(help="YAML file; see `oaxe config show`.")],
    changes: Overrides = None,
) -> None:
    """Train a model; the same command continues a run that was stopped.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m oaxe train config.yaml
    """
    from oaxe.support.console import new_console
    from oaxe.training.settings import load_settings

    settings = load_settings(configuration, changes or [])

    from oaxe.training.run import train
    from oaxe.training.trainer import INTERRUPTED

    if train(settings, new_console())["stopped"] == INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)


@config.command()
def check(
    configurations: Annotated[list[Path], typer.Argument(help="YAML files.")],
    changes: Overrides = None,
) -> None:
    """Read configurations and report everything that is wrong with them."""
    from oaxe.training.settings import load_settings

    wrong = 0
    for path in configurations:
        try:
            load_settings(path, changes or [])
            typer.echo(f"{path}: fine")
        except UserError as error:
            wrong += 1
            typer.echo(str(error), err=True)
    raise typer.Exit(1 if wrong else 0)


@config.command()
def show(
    system: Annotated[
        str, typer.Option(help="A system of `oaxe config systems`, or a module of yours.")
    ] = "cmlm",
) -> None:
    """Print every setting with its default and meaning, as YAML to start from."""
    from oaxe.training.settings import documented_settings

    typer.echo(documented_settings(system), nl=False)


@config.command()
def systems() -> None:
    """List the systems: one paper each."""
    from oaxe.systems import built_in, find

    for name in built_in():
        module = find(name)
        about = (module.__doc__ or "").partition("\n")[0]
        typer.echo(f"{name:<16} {about}\n{'':<16} {module.PAPER.title}, {module.PAPER.url}")
