"""A server with models that write backwards, and clients."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPMessage
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from oaxe.decoding.translator import Translation
from oaxe.search.hypothesis import Positions
from oaxe.serving.application import Service
from oaxe.serving.models import Model, Models
from oaxe.serving.server import Endpoint
from oaxe.text.symbols import BLANK, SYMBOLS

MAX_LENGTH = 8  # words
PIECES = list(SYMBOLS)  # and every word that was written


def backwards(sentences: Sequence[str], **how: Any) -> list[list[Translation]]:
    """Two hypotheses for each sentence: the letters in reverse, and the same in capitals."""
    if "bad" in sentences:
        raise ValueError("a bad sentence")
    return [
        [
            Translation(text, -float(rank), len(text), -1.0, [7], None if rank else said(text))
            for rank, text in enumerate(both)
        ]
        for both in ((s[::-1], s[::-1].upper()) for s in sentences)
    ]


def said(text: str) -> Positions:
    """Every word twice, then a blank; the first of two words has a probability of a quarter."""
    pieces = ["\u2581" + word for word in text.split()]
    PIECES.extend(piece for piece in pieces if piece not in PIECES)
    tokens = [token for piece in pieces for token in [PIECES.index(piece)] * 2]
    log_probs = np.log(np.array([0.25, 1] * len(pieces) + [1], np.float32))
    return Positions(np.array([*tokens, BLANK]), log_probs, list(range(0, len(tokens), 2)))


def without_positions(sentences: Sequence[str], **how: Any) -> list[list[Translation]]:
    return [[replace(t, said=None) for t in both] for both in backwards(sentences)]


def model_of(
    name: str = "en-de",
    translate: Callable[..., list[list[Translation]]] = backwards,
    max_length: int = MAX_LENGTH,
) -> Model:
    system = SimpleNamespace(max_length=max_length, name="ctc", device="cpu")
    subwords = SimpleNamespace(
        encode=lambda texts: [text.split() for text in texts], piece=PIECES.__getitem__
    )
    translator = mock.Mock(
        system=system, subwords=subwords, translate_scored=translate, is_exported=False
    )
    source, target = name.split("-")
    return Model(name, source, target, translator)


@contextmanager
def serving(*models: Model, **options: Any) -> Iterator[Endpoint]:
    """In a thread of its own, on a free port."""
    endpoint = Endpoint(Service(Models(models or (model_of(),)), **options), "127.0.0.1", 0)
    thread = threading.Thread(target=endpoint.run)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()
        thread.join(20)
        assert not thread.is_alive()
        assert endpoint.service.batcher.close(20)


def ask(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, HTTPMessage, str]:
    connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def translate(endpoint: Endpoint, content: Any, **headers: str) -> tuple[int, Any]:
    """Status and JSON; the content as JSON, if it is not bytes."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    given = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    status, _, text = ask(endpoint, "POST", "/translate", body, given)
    return status, json.loads(text)


def head(path: str = "/translate", length: int = 0, method: str = "POST") -> bytes:
    """The head of a request as a client sends it."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this took too long"
        time.sleep(0.01)
