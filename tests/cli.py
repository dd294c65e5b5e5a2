"""Programs in this process, rather than in one of their own."""

import typer
from typer.testing import CliRunner


def printed(program: typer.Typer, *arguments: object, stdin: str | None = None) -> str:
    """What a program prints with these arguments; its exceptions are raised."""
    result = CliRunner().invoke(program, [*map(str, arguments)], input=stdin)
    if result.exception:
        raise result.exception
    return result.stdout
