"""``oaxe translate``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.models import load
from oaxe.commands.options import Decoding, ModelName, with_decoding


@with_decoding
def translate(
    model: ModelName,
    decoding: Decoding,
    source: Annotated[
        Path | None, typer.Argument(help="Text, one sentence a line. Default: standard input.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File for the translations. Default: standard output."),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Write JSON lines with scores and all hypotheses. Default: plain text, the best.",
        ),
    ] = False,
    paragraphs: Annotated[
        bool,
        typer.Option(
            "--paragraphs",
            help="Split lines into sentences and translate them all. Default: a line is one "
            "sentence.",
        ),
    ] = False,
) -> None:
    """Translate a file, standard input, or what you type."""
    import sys

    from oaxe.decoding.lines import talk, translate_file
    from oaxe.support.console import new_console

    translator = load(model, decoding)
    if source is None and sys.stdin.isatty() and output is None and not json:
        talk(translator, new_console(), paragraphs=paragraphs, **decoding.given)
    else:
        translate_file(
            translator,
            source,
            output,
            as_json=json,
            paragraphs=paragraphs,
            batch_tokens=decoding.batch_tokens,
            bf16=decoding.bf16,
            **decoding.given,
        )
