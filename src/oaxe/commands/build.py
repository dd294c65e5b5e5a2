"""``oaxe build``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.prepare import (
    NewFolder,
    SourceLanguage,
    TargetLanguage,
    Test,
    Train,
    text_option,
)
from oaxe.support.errors import EXIT_INTERRUPTED


def build(
    out: NewFolder,
    train: Train,
    source_language: SourceLanguage,
    target_language: TargetLanguage,
    valid: Annotated[
        tuple[Path, Path] | None,
        text_option("Validation text, two files. Default: up to 1,000 training pairs."),
    ] = None,
    test: Test = None,
    minutes: Annotated[
        float,
        typer.Option(min=0.01, max=1e6, help="Time for everything together, on this machine."),
    ] = 30.0,
    system: Annotated[str, typer.Option(help="One-pass system: ctc_glat or dag.")] = "ctc_glat",
    distil: Annotated[
        bool,
        typer.Option(
            "--distil",
            help="Train the one-pass model on the teacher's translations. Default: raw text.",
        ),
    ] = False,
    size: Annotated[
        str | None, typer.Option(help="Size of the models. Default: by the text and the machine.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Number of subwords. Default: by the text.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan. Default: do all of it.")
    ] = False,
) -> None:
    """Make a one-pass translator of two text files.

    All stages, in the minutes that you give, with a report. The same command continues a build that
    was stopped.
    """
    from oaxe.pipeline.plan import ask
    from oaxe.pipeline.stages import build
    from oaxe.support.console import new_console

    asked = ask(
        source_language,
        target_language,
        {"train": train, "valid": valid, "test": test},
        minutes=minutes,
        system=system,
        distil=distil,
        size=size,
        vocab_size=vocab_size,
    )
    if not build(out, asked, new_console(), dry_run=dry_run):
        raise typer.Exit(EXIT_INTERRUPTED)
