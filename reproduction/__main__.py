"""The experiments of the paper, each with one command; it imports late, like the product's."""

import typer

from oaxe.commands.app import Listing, run
from reproduction.commands import add_commands

app = typer.Typer(
    cls=Listing,
    help="The experiments of the paper, each with one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
add_commands(app)

if __name__ == "__main__":
    run(app)
