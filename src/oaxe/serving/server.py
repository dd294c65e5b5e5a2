"""``oaxe serve``: POST /translate for programs, a page to type into for people.

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
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rich.console import Console

from oaxe.decoding.translator import Option, Translator
from oaxe.serving.batcher import Batcher
from oaxe.support.config import to_mapping
from oaxe.support.errors import UserError
from oaxe.support.html import page

LARGEST = 2**20  # bytes of a request
MOST = 1_024  # sentences of a request: others wait for it
PATIENCE = 30  # seconds without a byte of a request


class RefusedError(Exception):
    """A request that cannot be answered, with the reason for the one who sent it."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server: "Server"
    unread = 0  # bytes of a request that was refused

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
            sentences = sentences_of(body)
            self.server.check(sentences)
            began = time.perf_counter()
            translations = self.server.translate(sentences)
        except RefusedError as error:
            self._refuse(error)
            self._discard()
        except Exception as error:
            self._refuse(RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}"))
            raise
        else:
            took = round(1e3 * (time.perf_counter() - began), 1)
            answer = {"translations": translations, "milliseconds": took}
            self._send_json(HTTPStatus.OK, answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: one line a request is too much."""

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "say Content-Length")
        size = int(length[:18])  # of more digits it is too large all the same
        if size > LARGEST:
            self.unread = min(size, 16 * LARGEST)
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LARGEST} bytes; send several"
            )
        try:
            return self.rfile.read(size)
        except TimeoutError:
            raise RefusedError(
                HTTPStatus.REQUEST_TIMEOUT, f"nothing came for {PATIENCE} seconds"
            ) from None

    def _refuse(self, error: RefusedError) -> None:
        self._send_json(error.status, {"error": str(error)})

    def _discard(self) -> None:
        """Who is still sending when the connection closes never reads why."""
        with suppress(OSError):
            while self.unread and (got := len(self.rfile.read(min(self.unread, LARGEST)))):
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
    daemon_threads = False  # closing waits for the answers that are under way
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        translate: Callable[[Sequence[str]], list[str]],
        check: Callable[[Sequence[str]], None],
        about: dict[str, Any],
    ) -> None:
        self.translate, self.check, self.about = translate, check, about
        self.page = typing_page(*about["languages"])
        super().__init__(address, Handler)


def sentences_of(body: bytes) -> list[str]:
    """What is to be translated, from ``{"sentences": [...]}``."""
    example = '{"sentences": ["A sentence.", "Another."]}'
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"no JSON: {error}; send {example}") from None
    sentences = content.get("sentences") if isinstance(content, dict) else None
    if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"send {example}")
    if others := sorted(content.keys() - {"sentences"}):
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            f"there is no {', '.join(map(repr, others))}; send {example}; options are given to "
            "oaxe serve at its start",
        )
    if len(sentences) > MOST:
        raise RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MOST} sentences; send several requests"
        )
    try:
        "".join(sentences).encode()
    except UnicodeEncodeError as error:  # half of a pair that JSON can write and UTF-8 cannot
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"no text: {error}") from None
    return sentences


def refuse_long(translator: Translator, sentences: Sequence[str]) -> None:
    """What the model cannot read whole is not translated in part."""
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
    """Answer until Ctrl-C or SIGTERM; requests under way are answered first."""
    decoding = to_mapping(translator.decoding_with(**options))

    def translate(sentences: Sequence[str]) -> list[str]:
        return translator.translate(
            sentences,
            batch_tokens=batch_tokens,
            bf16=bf16,
            **decoding,
        )

    translate(["."])  # most of what is slow the first time is done before anybody waits
    batcher = Batcher(translate)
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
            signal.signal(number, signal.SIG_DFL)  # the second time leaves at once
            threading.Thread(target=server.shutdown).start()  # it waits for the loop below

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        console.print(f"http://{host}:{server.server_address[1]}, Ctrl-C stops it", highlight=False)
        server.serve_forever()
    batcher.close()


def typing_page(source: str, target: str) -> str:
    """A box to type into; the answer comes while you type."""
    return page(
        f"{source or 'Text'} to {target or 'its translation'}",
        f"""
<label for="source">One sentence a line</label>
<textarea id="source" rows="6" autofocus></textarea>
<p id="target" lang="{escape(target)}" aria-live="polite"></p>
<p class="soft" id="took"></p>
<script>
const source = document.getElementById("source"), target = document.getElementById("target")
const took = document.getElementById("took")
let newest = 0
source.addEventListener("input", async () => {{
  const mine = ++newest
  await new Promise(done => setTimeout(done, 200))  // until typing pauses
  if (mine !== newest) return
  try {{
    const body = JSON.stringify({{sentences: source.value.split("\\n")}})
    const answer = await (await fetch("translate", {{method: "POST", body}})).json()
    if (mine !== newest) return
    target.textContent = answer.error ?? answer.translations.join("\\n")
    took.textContent = answer.error ? "" : answer.milliseconds + " ms"
  }} catch (error) {{
    took.textContent = "no answer: is the server still there?"
  }}
}})
</script>""",
        "textarea { width: 100%; box-sizing: border-box; font: inherit }"
        "#target { white-space: pre-wrap; font-size: 1.15rem }",
    )
