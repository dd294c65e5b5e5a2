"""Clients of the server, as many as wanted in one thread: patient, fast, slow and mad ones."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NASTY: tuple[Any, ...] = (
    None, True, -1, 10**30, 1.5, "", "\ufdfa" * 4_000, "a" * 19_000, "\0", "\u2028. A", "<a <b",
    [], {}, [""], [[]], [None], "B! " * 2_000, ["a"] * 2_000, {"q": {}}, "\U0001f600",
    "e\u0301" * 300,
)  # fmt: skip
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data", "text/x")
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


NO_ANSWER = Answer(0, b"")


@dataclass
class Tally:
    """What clients saw; a status of 0 is no answer."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of answers with 200
    wrong: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.seconds, share)) if self.seconds else float("nan")

    def shown(self) -> str:
        return ", ".join(f"{n} x {status}" for status, n in sorted(self.statuses.items()))


def encoded(method: str, path: str, body: bytes = b"", kind: str = KINDS[0]) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def asking(texts: str | list[str], **fields: Any) -> bytes:
    return encoded("POST", "/translate", json.dumps({"q": texts, **fields}).encode())


class Client(asyncio.Protocol):
    """One connection, opened anew when the server closed it. Lean: it shares the server's cores."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._received, self._has_body = b"", True

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def open(self) -> None:
        """Raises OSError if nobody listens."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    async def ask(self, request: bytes, *, has_body: bool = True) -> Answer:
        """The answer; status 0 if there was none."""
        try:
            if self._transport is None:
                await self.open()
        except OSError:
            return NO_ANSWER
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._answer, self._has_body = loop.create_future(), has_body
        self._transport.write(request)
        late = loop.call_later(60, self._transport.abort)
        try:
            return await self._answer
        finally:
            late.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, whole, body = self._received.partition(b"\r\n\r\n")
        if not whole or self._answer is None or self._answer.done():
            return
        head = head.lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if self._has_body else 0
        if len(body) < length:
            return
        if b"connection: close" in head:
            self.close()
        self._received = b""
        self._answer.set_result(Answer(int(head[9:12]), body))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(NO_ANSWER)
        self._transport, self._received = None, b""

    def close(self) -> None:
        if self._transport:
            self._transport.close()
        self._transport = None


async def closed_loop(
    port: int, clients: int, seconds: float, request: Callable[[], bytes]
) -> Tally:
    """Each client asks again as soon as it has its answer, or a second after any but 200."""
    tally, end = Tally(), time.perf_counter() + seconds

    async def work() -> None:
        client = Client(port)
        while (start := time.perf_counter()) < end:
            answer = await client.ask(request())
            tally.statuses[answer.status] += 1
            if answer.status == 200:
                tally.seconds.append(time.perf_counter() - start)
            else:
                await asyncio.sleep(min(1, max(0, end - time.perf_counter())))
        client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    tally.wrong += [f"status {s}" for s in tally.statuses if s not in (200, 503)]
    return tally


def mad_requests(document: dict[str, Any], seed: int) -> Iterator[tuple[str, str, bytes]]:
    """Method, path and bytes: right and wrong values for the fields of the OpenAPI document."""
    rng = random.Random(seed)
    content = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    fields = content["application/json"]["schema"]["properties"]
    paths = [*document["paths"], "/no", "/translate/", "//", "/%00", "/translate?q=a"]
    while True:
        method, path = rng.choice(METHODS), rng.choice(paths)
        if rng.random() < 0.7:
            method, path = "POST", "/translate"
        values = {
            name: value_for(schema, rng) for name, schema in fields.items() if rng.random() < 0.3
        }
        values["q"] = value_for(fields["q"], rng)
        kind = rng.choice(KINDS) if rng.random() < 0.3 else KINDS[0]
        body = bytearray(json.dumps(values).encode())
        if rng.random() < 0.2:
            for _ in range(rng.randint(1, 5)):
                body[rng.randrange(len(body))] = rng.randrange(256)
        elif rng.random() < 0.1:
            del body[rng.randrange(len(body)) :]
        yield method, path, encoded(method, path, bytes(body), kind)


def value_for(schema: dict[str, Any], rng: random.Random) -> Any:
    if rng.random() < 0.3:
        return rng.choice(NASTY)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "oneOf" in schema:
        return value_for(rng.choice(schema["oneOf"]), rng)
    if schema["type"] == "array":
        return [value_for(schema["items"], rng) for _ in range(rng.randint(0, 3))]
    if schema["type"] == "string":
        return " ".join(
            rng.choices(["A", "dog.", "Yes!", "犬。", "\n", "<b>", "&lt;"], k=rng.randint(0, 9))
        )
    return {"integer": rng.randint(0, 9), "boolean": rng.random() < 0.5}[schema["type"]]


async def fuzz(port: int, document: dict[str, Any], count: int, seed: int) -> Tally:
    """Every answer must be one that the document has, and JSON if it is an error."""
    tally, client = Tally(), Client(port)
    for _, (method, path, request) in zip(range(count), mad_requests(document, seed), strict=False):
        answer = await client.ask(request, has_body=method != "HEAD")
        tally.statuses[answer.status] += 1
        known = document["paths"].get(path.split("?")[0], {})
        operation = known.get("get" if method == "HEAD" else method.lower())
        allowed = operation["responses"] if operation else ("405",) if known else ("404",)
        if answer.status == 500 or str(answer.status) not in allowed:
            tally.wrong.append(f"{method} {path}: {answer.status} {answer.body[:200]!r}")
        elif (
            answer.status >= 400 and method != "HEAD" and set(json.loads(answer.body)) != {"error"}
        ):
            tally.wrong.append(f"{method} {path}: no JSON error, {answer.body[:200]!r}")
    client.close()
    return tally


async def slow_clients(port: int, count: int, request: bytes, seconds: float) -> Tally:
    """A byte a second each; whether the server ended them before the seconds were over."""
    tally = Tally()

    async def work() -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                async with asyncio.timeout(seconds):
                    answered = asyncio.ensure_future(reader.read(100))
                    for byte in request:
                        writer.write(bytes([byte]))
                        if (await asyncio.wait([answered], timeout=1))[0]:
                            break
                    head = await answered
            finally:
                writer.close()
        except TimeoutError:
            tally.wrong.append("a slow client was not cut")
        except OSError:
            tally.statuses[0] += 1
        else:
            tally.statuses[int(head[9:12]) if head else 0] += 1

    await asyncio.gather(*(work() for _ in range(count)))
    return tally


async def hold_connections(port: int, count: int) -> Tally:
    """Open so many connections, then ask on each."""
    tally, clients = Tally(), [Client(port) for _ in range(count)]
    errors = await asyncio.gather(*(client.open() for client in clients), return_exceptions=True)
    for client, error in zip(clients, errors, strict=True):
        if error is None:  # the server may have closed it since
            asked = client.is_open and await client.ask(encoded("GET", "/health"))
            tally.statuses[(asked or NO_ANSWER).status] += 1
    for client in clients:
        client.close()
    tally.wrong += [f"status {s}" for s in tally.statuses if s not in (0, 200, 503)]
    return tally


async def ask_and_stop(port: int, clients: int, request: bytes, stop: Callable[[], None]) -> Tally:
    """All requests are sent whole when the server is stopped: each gets its answer."""
    tally = Tally()
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    for _, writer in streams:
        writer.write(request)
    await asyncio.gather(*(writer.drain() for _, writer in streams))
    stop()
    for reader, writer in streams:
        try:
            head = (await asyncio.wait_for(reader.read(), 60))[:12]
        except OSError:
            head = b""
        tally.statuses[int(head[9:12]) if head else 0] += 1
        writer.close()
    tally.wrong += [f"status {s}" for s in tally.statuses if s not in (200, 503)]
    return tally
