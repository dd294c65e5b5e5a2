"""The command line. Commands import what they need when they run: ``--help`` must be instant."""

import errno
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from oaxe import __version__
from oaxe.commands.build import build
from oaxe.commands.config import config
from oaxe.commands.data import data
from oaxe.commands.distill import distill
from oaxe.commands.evaluate import evaluate
from oaxe.commands.export import export
from oaxe.commands.ngrams import ngrams
from oaxe.commands.prepare import prepare
from oaxe.commands.serve import serve
from oaxe.commands.train import train
from oaxe.commands.translate import translate
from oaxe.support.errors import UserError, did_you_mean
from oaxe.support.extras import missing_extra


class Listing(TyperGroup):
    """An unknown name is answered with those that there are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            close = did_you_mean(args[0], names)
            ctx.fail(f"no such command: {args[0]}{close or '.'} There are {', '.join(names)}.")
        return super().resolve_command(ctx, args)


class Explaining(TyperCommand):
    """An option that needs two files says which, and text that it needs quotes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            message = getattr(error, "message", "")
            if "requires 2 arguments" in message:
                error.message += " Give two files: the source, then the target."  # type: ignore[attr-defined]
            if "unexpected extra argument" in message and ctx.info_name == "translate":
                error.message += ". Text of several words needs quotes."  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    cls=Listing,
    help="Train, run and measure non-autoregressive translation models.",
    epilog='Try: oaxe translate "How are you today?"',
    no_args_is_help=True,
    context_settings={"max_content_width": 100},
    rich_markup_mode=None,  # plain help: Rich takes longer to load than everything else
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
    build, prepare, train, translate, serve, export, distill, ngrams, evaluate,
]  # fmt: skip
for command in commands:
    app.command(cls=Explaining)(command)
app.add_typer(config, name="config")
app.add_typer(data, name="data")


# Errors of the system that are not bugs, and what to do.
ENVIRONMENT = {
    errno.ENOSPC: "; make room there, or choose another place",
    errno.EDQUOT: "; make room there, or choose another place",
    errno.EACCES: "; choose another place, or change who may use this one (chmod, chown)",
    errno.EPERM: "; choose another place, or change who may use this one (chmod, chown)",
    errno.EROFS: "; choose another place",
    errno.ELOOP: "; the link leads to itself: give the file that is meant",
    errno.EISDIR: "; give a file",
    errno.ENOTDIR: "; a part of the path is a file: give another one",
    errno.ENAMETOOLONG: "; give a shorter name",
    errno.EIO: "; the disk or the network failed: try again, or choose another place",
}


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
    except OSError as error:
        if error.errno not in ENVIRONMENT:
            raise
        where = f"{error.filename}: " if error.filename else ""
        typer.secho(f"error: {where}{error.strerror}{ENVIRONMENT[error.errno]}", fg="red", err=True)
        raise SystemExit(1) from None
    except ModuleNotFoundError as error:
        install = missing_extra(error)
        if install is None:
            raise
        typer.secho(f"error: this command needs: {install}", fg="red", err=True)
        raise SystemExit(1) from None
