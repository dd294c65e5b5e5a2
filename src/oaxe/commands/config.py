"""``oaxe config``, and the configurations that come with the package."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.options import Overrides, configuration_names
from oaxe.support.errors import UserError, did_you_mean

SHIPPED = Path(__file__).parents[1] / "configs"

config = typer.Typer(help="List, show and check configurations.", no_args_is_help=True)


def shipped() -> dict[str, Path]:
    """Every configuration of the package: ``multi30k/oaxe`` and its file."""
    paths = {path.relative_to(SHIPPED).with_suffix(""): path for path in SHIPPED.rglob("*.yaml")}
    return {name.as_posix(): path for name, path in sorted(paths.items())}


def find_configuration(name: str) -> Path:
    """The file of a configuration that is given by name or by path."""
    path, known = Path(name), shipped()
    if path.is_file():
        return path
    if name in known:
        return known[name]
    if (path / "config.yaml").is_file():
        raise UserError(f"{name} is a folder; give its configuration, {path / 'config.yaml'}")
    hint = did_you_mean(name.removeprefix("configs/").removesuffix(".yaml"), known)
    raise UserError(
        f"there is no file {name} and no configuration of that name{hint or ';'} "
        "`oaxe config list` shows all names"
    )


@config.command("list")
def list_configurations() -> None:
    """Print the names of all configurations that `oaxe train` can run, with a sentence on each."""
    found = shipped()
    width = max(map(len, found))
    for name, path in found.items():
        _command, about, *_ = path.read_text(encoding="utf-8").splitlines()
        typer.echo(f"{name:<{width}}  {about.removeprefix('# ')}")


@config.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME_OR_FILE]",
            autocompletion=configuration_names,
            help="A configuration to print. Default: all settings.",
        ),
    ] = None,
    system: Annotated[
        str,
        typer.Option(
            metavar="SYSTEM",
            help="Whose settings to print: a name (`oaxe config systems`), or a module of yours.",
        ),
    ] = "cmlm",
) -> None:
    """Print a configuration, or every setting of a system with its default and meaning."""
    if name is not None:
        from oaxe.support.config import read_text

        typer.echo(read_text(find_configuration(name)), nl=False)
        return

    from oaxe.training.settings import documented_settings

    typer.echo(documented_settings(system), nl=False)


@config.command()
def systems() -> None:
    """Print the names of all systems, what they are and the papers that proposed them."""
    from oaxe.systems import built_in, find

    for name in built_in():
        module = find(name)
        about = (module.__doc__ or "").partition("\n")[0]
        typer.echo(f"{name:<16} {about}\n{'':<16} {module.PAPER.title}, {module.PAPER.url}")


@config.command()
def check(
    configurations: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME_OR_FILE...",
            autocompletion=configuration_names,
            help="Configurations by name, or YAML files.",
        ),
    ],
    changes: Overrides = None,
) -> None:
    """Read configurations and report everything that is wrong with them."""
    from oaxe.training.settings import load_settings

    wrong = 0
    for name in configurations:
        try:
            load_settings(find_configuration(name), changes or [])
            typer.echo(f"{name}: fine")
        except UserError as error:
            wrong += 1
            typer.echo(str(error), err=True)
    raise typer.Exit(1 if wrong else 0)
