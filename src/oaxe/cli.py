"""The command line. Commands import what they need when they run: ``--help`` must be instant.

Those that come in groups, or with many options, are in ``commands.py`` beside what they do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from oaxe import __version__
from oaxe.bench.commands import bench
from oaxe.datasets.commands import data
from oaxe.errors import EXIT_INTERRUPTED, UserError
from oaxe.evaluation.commands import evaluate
from oaxe.options import (
    BatchTokens,
    Beam,
    Bf16,
    Device,
    LengthCandidates,
    LengthPenalty,
    ModelName,
)
from oaxe.synthetic.commands import demo, synthetic
from oaxe.training.commands import config, train
from oaxe.translation.commands import add_commands

app = typer.Typer(
    help="Order-agnostic cross entropy: losses for models that predict all words at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


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
    from oaxe.console import new_console
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

    from oaxe.console import new_console
    from oaxe.decoding.lines import load_translator, talk, translate_file

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


def serve(
    model: ModelName,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 for any that is free.")] = 8_000,
    length_candidates: LengthCandidates = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = 16_384,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Translate over HTTP: POST /translate for programs, a page to type into for people.

    What arrives while a batch is translated is the next batch. There is no encryption and no
    password: on anything but your own machine, put a web server in front.
    """
    from oaxe.console import new_console
    from oaxe.decoding.lines import load_translator
    from oaxe.serving.server import serve

    given = {
        "length_candidates": length_candidates,
        "beam": beam,
        "length_penalty": length_penalty,
    }
    serve(
        load_translator(model, device),
        name=model,
        host=host,
        port=port,
        batch_tokens=batch_tokens,
        bf16=bf16,
        console=new_console(),
        **{name: value for name, value in given.items() if value is not None},
    )


def distill(
    out: Annotated[Path, typer.Option(help="Folder to make.", file_okay=False)],
    teacher: Annotated[
        str, typer.Option(help="An autoregressive run, checkpoint of it, model or hub name.")
    ],
    source: Annotated[Path | None, typer.Option(help="Training source: plain, .gz or .xz.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Or: prepared folder, whose training source is taken.")
    ] = None,
    valid: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SOURCE REFERENCE", help="Measure the teacher's BLEU on this first."),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam width.")] = 5,
    length_penalty: Annotated[float, typer.Option(help="Exponent of the length.")] = 1.0,
    batch_tokens: BatchTokens = 16_384,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that share a device, if it has room.")
    ] = 1,
    device: Device = None,
    bf16: Bf16 = False,
) -> None:
    """Let a teacher translate the training text; the same command continues what was stopped.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m oaxe.cli distill ...
    """
    from oaxe.console import new_console

    if (source is None) == (data is None):
        raise typer.BadParameter("give either --source or --data")

    from oaxe.distillation.distill import distill, training_source
    from oaxe.text.manifest import read_manifest

    finished = distill(
        out,
        teacher=teacher,
        source=training_source(data) if data else source,  # type: ignore[arg-type]
        languages=read_manifest(data).languages if data else None,
        beam=beam,
        length_penalty=length_penalty,
        batch_tokens=batch_tokens,
        bf16=bf16,
        device=device,
        processes=processes,
        valid=valid,
        console=new_console(),
    )
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)


# In the order of `oaxe --help`.
commands: list[Callable[..., None]] = [demo, prepare, train, translate, serve, distill, evaluate]
for command in commands:
    app.command()(command)
app.add_typer(config, name="config")
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
reproduce = typer.Typer(
    help="The experiments of the paper, each with one command.", no_args_is_help=True
)
reproduce.command()(synthetic)
add_commands(reproduce)
app.add_typer(reproduce, name="reproduce")


def run() -> None:
    """The program: a user's mistake gets its message, our own a traceback."""
    import os
    import warnings

    # Threads that spin while they wait make a step many times slower on cores that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app()
    except UserError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    run()
