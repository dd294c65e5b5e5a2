"""``oaxe translate``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.models import load
from oaxe.commands.options import Decoding, ModelName, with_decoding


@with_decoding
def translate(
    decoding: Decoding,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT_OR_FILE",
            help="Text in quotes, or a file of one sentence a line: if there is a file of that "
            "name, it is read. Default: standard input.",
        ),
    ] = None,
    model: ModelName = None,
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
            help="Split lines into sentences and translate them all, as is done with text on the "
            "command line. Default: a line is one sentence.",
        ),
    ] = False,
) -> None:
    """Translate text, a file, standard input, or what you type.

    oaxe translate "How are you today?"
    """
    import sys

    from oaxe.decoding.lines import find_source, talk, translate_file

    source = find_source(text)
    translator = load(model, decoding)
    if source is None and sys.stdin.isatty() and output is None and not json:
        from oaxe.support.console import new_console

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
