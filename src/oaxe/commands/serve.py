"""``oaxe serve``."""

from pathlib import Path
from typing import Annotated

import typer

from oaxe.commands.models import load
from oaxe.commands.options import Decoding, with_decoding
from oaxe.serving.limits import Limits

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="[NAME=]MODEL",
        help="Folder of a run, of one of its checkpoints, of a saved or an exported model, or a "
        "name on the Hugging Face hub; with a name of your own for it, such as en-de. Can be "
        "repeated. Default: the model in the box, English to German.",
    ),
]


@with_decoding
def serve(
    decoding: Decoding,
    models: Models = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is reachable from other machines.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")
    ] = 8_000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name that the server is reached by, besides localhost and addresses; "
            "* is any. Can be repeated.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Site whose pages may ask, such as https://example.org; * is all. Can be "
            "repeated.",
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with API keys, one a line; one of them is needed to translate. "
            "Default: none is needed.",
            dir_okay=False,
        ),
    ] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of a request.")] = Limits.bytes,
    max_characters: Annotated[
        int, typer.Option(min=1, help="Most characters of a request.")
    ] = Limits.characters,
    max_sentences: Annotated[
        int, typer.Option(min=1, help="Most sentences of a request.")
    ] = Limits.sentences,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Most sentences of one batch.")
    ] = Limits.batch,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Most sentences that wait; further requests get 503.")
    ] = Limits.waiting,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Most connections; further ones get 503.")
    ] = Limits.connections,
    max_requests: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most requests to translate in a minute, of an API key or else of an address; "
            "further ones get 429. Default: any number.",
        ),
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for a request to arrive, and again to be answered.")
    ] = Limits.seconds,
    stop_seconds: Annotated[
        float,
        typer.Option(min=0, help="Time to answer what was accepted, after Ctrl-C or SIGTERM."),
    ] = Limits.stop_seconds,
    access_log: Annotated[
        bool, typer.Option(help="Write a line to standard error for each request.")
    ] = True,
) -> None:
    """Translate over HTTP, for programs and for people.

    The interface is LibreTranslate's, and there is a web page to type into. Requests that arrive
    while a batch is translated form the next batch. There is no encryption: put a web server in
    front on any machine but your own.
    """
    from oaxe.support.extras import require_extra

    require_extra("serve", "oaxe serve")
    from oaxe.decoding.box import model_in_the_box
    from oaxe.serving.application import Service
    from oaxe.serving.guard import Access, read_keys
    from oaxe.serving.models import Models, named, split_name
    from oaxe.serving.server import serve
    from oaxe.support.console import new_console

    access = Access(allow_host or (), allow_origin or (), read_keys(api_keys) if api_keys else ())
    served = []
    for given in models or [str(model_in_the_box())]:
        name, path = split_name(given)
        served.append(named(name, path, load(path, decoding), **decoding.given))
    limits = Limits(
        bytes=max_bytes,
        characters=max_characters,
        sentences=max_sentences,
        batch=max_batch,
        waiting=max_waiting,
        connections=max_connections,
        requests=max_requests or 0,
        seconds=max_seconds,
        stop_seconds=stop_seconds,
    )
    service = Service(
        Models(served),
        limits=limits,
        access=access,
        batch_tokens=decoding.batch_tokens,
        bf16=decoding.bf16,
        access_log=access_log,
    )
    serve(service, host=host, port=port, console=new_console())
