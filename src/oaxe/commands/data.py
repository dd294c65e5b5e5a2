"""``oaxe data``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.options import dataset_names

data = typer.Typer(help="Download data sets by name, and prepare them.", no_args_is_help=True)

DatasetName = Annotated[
    str,
    typer.Argument(
        autocompletion=dataset_names,
        help="Name of a data set (`oaxe data list`); wmt14-de-en is wmt14-en-de in reverse.",
    ),
]
DatasetFolder = Annotated[
    Path,
    typer.Option(
        "--folder", "--from", envvar="OAXE_DATA", help="Folder that downloads are kept in."
    ),
]


@data.command("list")
def list_datasets() -> None:
    """Print the names of all data sets, what they are and their licences."""
    from rich.table import Table

    from oaxe.support.console import new_console
    from oaxe.text.datasets.catalogue import CATALOGUE

    table = Table(box=None, padding=(0, 1))
    for header in ("name", "train", "downloads"):
        table.add_column(header, no_wrap=True)
    table.add_column("what it is; licence")
    for name, entry in CATALOGUE.items():
        parts = [*(["train"] if entry.archives else []), *entry.test_sets]
        about = f"{entry.about}; {entry.licence}"
        table.add_row(name, entry.pairs, ", ".join(parts) or "nothing", about)
    new_console().print(table)


@data.command()
def get(name: DatasetName, folder: DatasetFolder = Path("data/sets")) -> None:
    """Download a data set, or check the one that is there, and print the command that uses it.

    The same command continues a download that was interrupted.
    """
    from oaxe.support.console import new_console
    from oaxe.text.datasets.dataset import dataset

    found = dataset(name, folder, new_console())
    prepare_it = found.prepare_command(f"data/{name}")
    typer.echo(prepare_it if found.train else found.evaluate_command())


@data.command("prepare")
def prepare_dataset(
    name: DatasetName,
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    folder: DatasetFolder = Path("data/sets"),
) -> None:
    """Download a data set, and run `oaxe prepare` with settings that suit it."""
    from oaxe.support.console import new_console
    from oaxe.support.errors import UserError
    from oaxe.text.datasets.dataset import dataset
    from oaxe.text.prepare import prepare

    found = dataset(name, folder, new_console())
    if found.train is None:
        raise UserError(f"{name} is for evaluation: it has nothing to train on")
    prepare(
        out,
        source_language=found.source_language,
        target_language=found.target_language,
        train=found.train,
        valid=found.valid,
        test=found.test,
        vocab_size=found.vocab_size,
        character_coverage=found.character_coverage,
        console=new_console(),
    )
