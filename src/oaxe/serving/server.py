"""``oaxe serve``: POST /translate for programs, a page for people.

curl localhost:8000/translate -d '{"sentences": ["A man rides a bike."]}'
{"translations": ["Ein Mann fährt Rad."], "milliseconds": 12.3}
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rich.console import Console

from oaxe.decoding.translator import Option, Translator
from oaxe.serving.batcher import Batcher
from oaxe.support.config import to_mapping
from oaxe.support.errors import UserError
from oaxe.support.html import render

MAX_BYTES = 2**20  # of a request
MAX_SENTENCES = 1_024  # of a request, since other requests wait for it
TIMEOUT = 30  # seconds without a byte of a request
EXAMPLE = '{"sentences": ["A sentence.", "Another."]}'


class RefusedError(Exception):
    """A request that cannot be answered, with the reason for the client."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT
    server: "Server"
    unread = 0  # bytes of a refused request

    def do_GET(self) -> None:
        if self.path == "/":
            self._send(HTTPStatus.OK, self.server.page.encode(), "text/html; charset=utf-8")
        elif self.path == "/health":
            self._send_json(HTTPStatus.OK, self.server.about)
        elif self.path == "/translate":
            self._refuse(RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "post to /translate"))
        else:
            self._refuse(RefusedError(HTTPStatus.NOT_FOUND, "there are /, /health and /translate"))

    def do_POST(self) -> None:
        try:
            body = self._body()
            if self.path != "/translate":
                raise RefusedError(HTTPStatus.NOT_FOUND, "post to /translate")
            sentences = parse_sentences(body)
            self.server.check(sentences)
            start = time.perf_counter()
            translations = self.server.translate(sentences)
        except RefusedError as error:
            self._refuse(error)
            self._discard()
        except Exception as error:
            self._refuse(RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}"))
            raise
        else:
            took = round(1e3 * (time.perf_counter() - start), 1)
            answer = {"translations": translations, "milliseconds": took}
            self._send_json(HTTPStatus.OK, answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """No line for each request."""

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "send Content-Length")
        size = int(length[:18])  # with more digits it is too large anyway
        if size > MAX_BYTES:
            self.unread = min(size, 16 * MAX_BYTES)
            message = f"at most {MAX_BYTES} bytes; send several requests"
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        try:
            return self.rfile.read(size)
        except TimeoutError:
            message = f"nothing came for {TIMEOUT} seconds"
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, message) from None

    def _refuse(self, error: RefusedError) -> None:
        self._send_json(error.status, {"error": str(error)})

    def _discard(self) -> None:
        """Read the rest: a client that is still sending would not read the answer."""
        with suppress(OSError):
            while self.unread and (got := len(self.rfile.read(min(self.unread, MAX_BYTES)))):
                self.unread -= got

    def _send_json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        text = json.dumps(content, ensure_ascii=False) + "\n"
        self._send(status, text.encode(), "application/json; charset=utf-8")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST")
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for the requests in progress
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        translate: Callable[[Sequence[str]], list[str]],
        check: Callable[[Sequence[str]], None],
        about: dict[str, Any],
    ) -> None:
        self.translate, self.check, self.about = translate, check, about
        source, target = about["languages"]
        title = f"{source or 'Text'} to {target or 'its translation'}"
        self.page = render("serve.html", title=title, language=target)
        super().__init__(address, Handler)


def parse_sentences(body: bytes) -> list[str]:
    """The sentences of ``{"sentences": [...]}``."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"no JSON: {error}; send {EXAMPLE}") from None
    sentences = content.get("sentences") if isinstance(content, dict) else None
    if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"send {EXAMPLE}")
    if others := sorted(content.keys() - {"sentences"}):
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            f"unknown: {', '.join(map(repr, others))}; send {EXAMPLE}; options are given to "
            "oaxe serve at its start",
        )
    if len(sentences) > MAX_SENTENCES:
        message = f"at most {MAX_SENTENCES} sentences; send several requests"
        raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    try:
        "".join(sentences).encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can express
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"no text: {error}") from None
    return sentences


def refuse_long(translator: Translator, sentences: Sequence[str]) -> None:
    """Refuse sentences that the model could translate only in part."""
    limit = translator.system.max_length
    for number, tokens in enumerate(translator.subwords.encode([s.strip() for s in sentences])):
        if len(tokens) > limit:
            raise RefusedError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"sentence {number} (counted from 0) has {len(tokens)} subwords, the model reads "
                f"{limit}; split it",
            )


def serve(
    translator: Translator,
    *,
    name: str,
    host: str,
    port: int,
    batch_tokens: int,
    bf16: bool,
    console: Console,
    **options: Option,
) -> None:
    """Serve until Ctrl-C or SIGTERM; requests in progress are answered first."""
    decoding = to_mapping(translator.decoding_with(**options))

    def translate(sentences: Sequence[str]) -> list[str]:
        return translator.translate(sentences, batch_tokens=batch_tokens, bf16=bf16, **decoding)

    translate(["."])  # warm up before the first request
    batcher = Batcher(translate, MAX_SENTENCES)
    about = {
        "model": name,
        "system": translator.system.name,
        "languages": translator.languages,
        "decoding": decoding,
        "device": str(translator.system.device),
    }
    try:
        server = Server((host, port), batcher, partial(refuse_long, translator), about)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose others with --host "
            "and --port"
        ) from None
    with server:

        def stop(number: int, frame: object) -> None:
            signal.signal(number, signal.SIG_DFL)  # a second signal ends at once
            threading.Thread(target=server.shutdown).start()  # it waits for the loop below

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        console.print(f"http://{host}:{server.server_address[1]}, Ctrl-C stops it", highlight=False)
        server.serve_forever()
    batcher.close()
