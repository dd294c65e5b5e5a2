"""``oaxe serve``."""

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
    from oaxe.serving.server import serve
    from oaxe.support.console import new_console
    from oaxe.training.run import load_translator

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
