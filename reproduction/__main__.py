"""The experiments of the paper, each with one command; it imports late, like the product's."""

import typer

from oaxe.commands.app import run
from reproduction.synthetic.commands import demo, synthetic
from reproduction.translation.commands import add_commands

app = typer.Typer(
    help="The experiments of the paper, each with one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(synthetic)
add_commands(app)

if __name__ == "__main__":
    run(app)
