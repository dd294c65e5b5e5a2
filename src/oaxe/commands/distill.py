"""``oaxe distill``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.options import BatchTokens, Bf16, Device
from oaxe.support.errors import EXIT_INTERRUPTED


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
    from oaxe.support.console import new_console

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
