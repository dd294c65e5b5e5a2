"""``oaxe distill``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.options import Device, Systems
from oaxe.support.errors import EXIT_INTERRUPTED


def distill(
    out: Annotated[Path, typer.Option(help="Folder to make.", file_okay=False)],
    teacher: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Autoregressive model: folder of a run, checkpoint or saved model, or a hub name.",
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Training source, one sentence a line: plain, .gz or .xz. Default: --data.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Prepared folder whose training source is translated. Default: --source.",
        ),
    ] = None,
    valid: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="SOURCE REFERENCE",
            help="Two files; the BLEU of the teacher on them is measured first. Default: none.",
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam width; 1 is greedy search.")] = 5,
    length_penalty: Annotated[
        float,
        typer.Option(
            min=0, help="Hypotheses are ranked by log-probability over length to this power."
        ),
    ] = 1.0,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="One-pass model that chooses among the hypotheses of the beam: the likeliest by "
            "its own measure is kept. Default: the teacher's best.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Size of a batch, in source subwords with padding, times the beam. "
            "Default: 131072 on a GPU, 16384 on a CPU.",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes that share a device; one fills a GPU.")
    ] = 1,
    device: Device = None,
    bf16: Annotated[
        bool | None, typer.Option(help="Compute in bfloat16. Default: on a GPU.")
    ] = None,
    systems: Systems = None,
) -> None:
    """Translate the training source with a teacher. The same command continues after a stop.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m oaxe distill ...
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
        judge=judge,
        systems=systems or (),
        console=new_console(),
    )
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)
