"""``oaxe prepare``."""

from pathlib import Path
from typing import Annotated, Any

import typer


def two_files(given: tuple[Path, Path] | None) -> tuple[Path, Path] | None:
    """Rejects one file and an option behind it, which typer takes for two files."""
    if given and str(given[1]).startswith("-"):
        raise typer.BadParameter(f"two files are needed, source and target; got only {given[0]}")
    return given


def text_option(about: str) -> Any:
    return typer.Option(metavar="SOURCE TARGET", is_eager=True, callback=two_files, help=about)


NewFolder = Annotated[Path, typer.Argument(help="Folder to make.")]
Train = Annotated[
    tuple[Path, Path],
    text_option("Training text, two files with one sentence a line: plain, .gz or .xz."),
]
Test = Annotated[tuple[Path, Path] | None, text_option("Test text, two files. Default: none.")]
SourceLanguage = Annotated[str, typer.Option("--from", help="Source language, such as en.")]
TargetLanguage = Annotated[str, typer.Option("--to", help="Target language, such as de.")]


def prepare(
    out: NewFolder,
    train: Train,
    source_language: SourceLanguage,
    target_language: TargetLanguage,
    valid: Annotated[
        tuple[Path, Path] | None, text_option("Validation text, two files. Default: none.")
    ] = None,
    test: Test = None,
    vocab_size: Annotated[
        int, typer.Option(min=1, help="Number of subwords, shared by both languages (joint BPE).")
    ] = 32_000,
    subwords: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="SentencePiece model to use. Default: one is learned from --train."
        ),
    ] = None,
    max_length: Annotated[
        int, typer.Option(min=1, help="Drop training pairs with more subwords than this on a side.")
    ] = 250,
    max_ratio: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Drop training pairs in which one side has more than this times the subwords of "
            "the other. Default: keep all.",
        ),
    ] = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Drop repeated training pairs. Default: keep all.")
    ] = False,
    character_coverage: Annotated[
        float,
        typer.Option(
            help="Share of the characters that subwords cover; 0.9995 suits Japanese and Chinese."
        ),
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(help="Seed of the sample of lines that subwords are learned from.")
    ] = 1,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace a finished folder. Default: an error if there is one."
        ),
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=60,
            help="Processes that encode the training text. The files are the same with any number.",
        ),
    ] = 1,
) -> None:
    """Turn parallel text into subwords, for `oaxe train`."""
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
        workers=workers,
        console=new_console(),
    )
