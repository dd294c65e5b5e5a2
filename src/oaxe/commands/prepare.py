"""``oaxe prepare``."""

from pathlib import Path
from typing import Annotated

import typer


def prepare(
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    train: Annotated[
        tuple[Path, Path],
        typer.Option(metavar="SOURCE TARGET", help="Training text: plain, .gz or .xz."),
    ],
    source_language: Annotated[str, typer.Option("--from", help="Source language, such as en.")],
    target_language: Annotated[str, typer.Option("--to", help="Target language, such as de.")],
    valid: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="SOURCE TARGET", help="Validation text.")
    ] = None,
    test: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="SOURCE TARGET", help="Test text.")
    ] = None,
    vocab_size: Annotated[int, typer.Option(min=1, help="Joint BPE vocabulary.")] = 32_000,
    subwords: Annotated[
        Path | None, typer.Option(help="Use this subword model instead of learning one.")
    ] = None,
    max_length: Annotated[
        int, typer.Option(min=1, help="Drop training pairs with more subwords on a side.")
    ] = 250,
    max_ratio: Annotated[
        float | None, typer.Option(min=1, help="Drop training pairs of more unequal lengths.")
    ] = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Drop training pairs that were there before.")
    ] = False,
    character_coverage: Annotated[
        float, typer.Option(help="Share of characters kept; 0.9995 suits Japanese or Chinese.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sample that subwords are learned from.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished folder.")
    ] = False,
) -> None:
    """Parallel text to subwords in a folder that `oaxe train` reads."""
    from oaxe.support.console import new_console
    from oaxe.text.prepare import prepare

    prepare(
        out,
        source_language=source_language,
        target_language=target_language,
        train=train,
        valid=valid,
        test=test,
        vocab_size=vocab_size,
        character_coverage=character_coverage,
        max_length=max_length,
        max_ratio=max_ratio,
        deduplicate=deduplicate,
        subwords=subwords,
        seed=seed,
        overwrite=overwrite,
        console=new_console(),
    )
