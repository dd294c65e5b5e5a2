"""``oaxe export``."""

from pathlib import Path
from typing import Annotated, Literal

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
            "--int8", help="Weights in 8 bits: a quarter of the size, and faster. Default: float32."
        ),
    ] = False,
    length_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Default of that option of decoding, if the model has none: lengths less likely "
            "than this share of the likeliest are not tried. Default: chosen on the validation "
            "text of the run, or 0.1 if that is not there.",
        ),
    ] = None,
    lm: Annotated[
        Path | None,
        typer.Option(
            help="Folder of n-grams, by `oaxe ngrams`, to put into the folder and to search with "
            "from now on: beam search, of CTC models and DAGs. Its weight is chosen on the "
            "validation text of the run. Default: those that the model is decoded with, if any.",
            file_okay=False,
        ),
    ] = None,
    format: Annotated[
        Literal["onnx", "ctranslate2"],
        typer.Option(help="Format: onnx for one-pass models, ctranslate2 for autoregressive ones."),
    ] = "onnx",
    systems: Systems = None,
) -> None:
    """Write a model for a CPU, which translates without PyTorch.

    What only PyTorch can do, such as translations by samples, is replaced by the best without it.
    Give the folder of a one-pass model to `oaxe translate`, `serve` or `evaluate` as --model.
    """
    from oaxe.decoding.exported import LENGTH_SHARE, export
    from oaxe.support.console import new_console
    from oaxe.support.errors import UserError
    from oaxe.training.exporting import choose_cpu_decoding
    from oaxe.training.run import load_translator

    translator, console = load_translator(model, "cpu", systems or ()), new_console()
    if lm is not None and format != "onnx":
        raise UserError("CTranslate2 searches without n-grams; leave out --lm")
    if length_share is None or lm is not None:
        chosen = format == "onnx" and choose_cpu_decoding(translator, model, console, lm)
        if length_share is None:  # 0: it has one of its own, or needs none
            length_share = 0.0 if chosen else LENGTH_SHARE
    export(translator, folder, int8=int8, length_share=length_share, format=format)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    use = f"; use it with: oaxe translate --model {folder}" * (format == "onnx")
    console.print(f"{folder}: {size:.1f} MiB{use}", soft_wrap=True)
