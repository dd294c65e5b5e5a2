"""``oaxe translate``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.options import (
    BatchTokens,
    Beam,
    Bf16,
    Device,
    LengthCandidates,
    LengthPenalty,
    ModelName,
)


def translate(
    model: ModelName,
    source: Annotated[
        Path | None, typer.Argument(help="Text, a sentence a line; default: standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: standard output.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="JSON lines with scores and all alternatives.")
    ] = False,
    length_candidates: LengthCandidates = None,
    deduplicate: Annotated[
        bool | None, typer.Option(help="nat: collapse equal neighbours.")
    ] = None,
    refine_steps: Annotated[
        int | None, typer.Option(min=1, help="nat: passes; above 1 is mask-predict.")
    ] = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 16_384,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Translate a file, standard input, or what you type."""
    import sys

    from oaxe.decoding.lines import talk, translate_file
    from oaxe.support.console import new_console
    from oaxe.training.run import load_translator

    given = {
        "length_candidates": length_candidates,
        "deduplicate": deduplicate,
        "refine_steps": refine_steps,
        "beam": beam,
        "length_penalty": length_penalty,
    }
    options = {name: value for name, value in given.items() if value is not None}
    translator = load_translator(model, device)
    if source is None and sys.stdin.isatty() and output is None and not json:
        talk(translator, new_console(), **options)
    else:
        translate_file(
            translator,
            source,
            output,
            as_json=json,
            batch_tokens=batch_tokens,
            bf16=bf16,
            **options,
        )
