"""The command line. Commands import what they need when they run: ``--help`` must be instant."""

from collections.abc import Callable
from typing import Annotated

import typer

from oaxe import __version__
from oaxe.commands.config import config
from oaxe.commands.data import data
from oaxe.commands.distill import distill
from oaxe.commands.evaluate import evaluate
from oaxe.commands.export import export
from oaxe.commands.prepare import prepare
from oaxe.commands.serve import serve
from oaxe.commands.train import train
from oaxe.commands.translate import translate
from oaxe.support.errors import UserError
from oaxe.support.extras import missing_extra

app = typer.Typer(
    help="Train, run and measure non-autoregressive translation models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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


# In the order of `oaxe --help`.
commands: list[Callable[..., None]] = [
    prepare, train, translate, serve, export, distill, evaluate,
]  # fmt: skip
for command in commands:
    app.command()(command)
app.add_typer(config, name="config")
app.add_typer(data, name="data")


def run(program: typer.Typer = app) -> None:
    """Run a program: a mistake of the user's shows its message, a bug its traceback."""
    import os
    import warnings

    # Threads that spin while they wait make a step many times slower on cores that are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        program()
    except UserError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(error.exit_code) from None
    except ModuleNotFoundError as error:
        install = missing_extra(error)
        if install is None:
            raise
        typer.secho(f"error: this command needs: {install}", fg="red", err=True)
        raise SystemExit(1) from None
