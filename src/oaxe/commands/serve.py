"""``oaxe serve``."""

from typing import Annotated

import typer

from oaxe.commands.models import load
from oaxe.commands.options import Decoding, ModelName, with_decoding


@with_decoding
def serve(
    model: ModelName,
    decoding: Decoding,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is reachable from other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")
    ] = 8_000,
) -> None:
    """Translate over HTTP: POST /translate for programs, a web page for people.

    Requests that arrive while a batch is translated form the next batch. There is no encryption
    and no password: put a web server in front on any machine but your own.
    """
    from oaxe.serving.server import serve
    from oaxe.support.console import new_console

    serve(
        load(model, decoding),
        name=model,
        host=host,
        port=port,
        batch_tokens=decoding.batch_tokens,
        bf16=decoding.bf16,
        console=new_console(),
        **decoding.given,
    )
