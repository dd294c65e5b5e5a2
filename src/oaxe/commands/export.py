"""``oaxe export``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.options import Systems


def export(
    model: Annotated[
        str, typer.Argument(help="Folder of a run, of one of its checkpoints or of a saved model.")
    ],
    folder: Annotated[Path, typer.Argument(help="Folder to write; new or empty.")],
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Weights in 8 bits: a quarter of the size, and faster. Default: float32.",
        ),
    ] = False,
    systems: Systems = None,
) -> None:
    """Write a one-pass model for a CPU: ONNX files that translate without PyTorch.

    Give the folder to `oaxe translate`, `serve` or `evaluate` as --model.
    """
    from oaxe.support.console import new_console
    from oaxe.support.extras import require_extra

    require_extra("cpu", "oaxe export")
    from oaxe.decoding.exported import export
    from oaxe.training.run import load_translator

    export(load_translator(model, "cpu", systems or ()), folder, int8=int8)
    size = sum(path.stat().st_size for path in folder.iterdir())
    new_console().print(
        f"{folder}: {size / 2**20:.1f} MiB; use it with: oaxe translate --model {folder}",
        highlight=False,
    )
