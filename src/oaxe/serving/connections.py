"""Connections with deadlines, and a server that stops within one; HTTP itself is uvicorn's.

Requests are parsed by httptools where it is installed, or else by h11, which takes longer.
"""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp
from uvicorn import Config, Server

from oaxe.serving.errors import RETRY_SECONDS
from oaxe.serving.limits import Limits

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol
else:
    Protocol = object  # see connection_type

KEEP_ALIVE = 30  # seconds that a connection may be idle
SPARE = 64  # connections beyond the limit that are told so; others are closed at once
MOMENT = 0.1  # seconds: what a client sent before the server was stopped has arrived by then

TOO_MANY: ASGIApp = JSONResponse(
    {"error": "too many connections; try again later"},
    503,
    {"Retry-After": str(RETRY_SECONDS), "Connection": "close"},
)


class Joined:
    """A transport that sends together what is written at a time: head and body of an answer."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written = list[bytes]()
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def _send(self) -> None:
        self._transport.write(b"".join(self._written))
        self._written.clear()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(Protocol):
    """A connection is cut if it makes no progress: no whole head, no answer taken, in time.

    Attributes:
        gone: is done when the client hung up; requests find it in their state.
    """

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self.app_state = {"gone": self.gone}
        # Without it an answer waits 40 ms for the client to confirm the one before.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deadline = self.loop.time() + self.limits.seconds
        self._began = False  # to send a head
        if len(self.connections) > self.limits.connections + SPARE:
            transport.abort()
        elif len(self.connections) > self.limits.connections:
            self.app = TOO_MANY

    def data_received(self, data: bytes) -> None:
        before, now = self.cycle, self.loop.time()
        super().data_received(data)
        if self.cycle is not before:  # a head: it may arrive, be answered, and be sent
            self._began, self.deadline = False, now + 3 * self.limits.seconds
        elif not self._began and self.is_idle:
            self._began, self.deadline = True, now + self.limits.seconds

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.gone.set_result(None)

    def eof_received(self) -> None:
        if not self.is_idle and self.cycle.more_body and not self.cycle.response_started:
            self.answer(HTTPStatus.BAD_REQUEST, "the request ended before its body was complete")

    def on_response_complete(self) -> None:
        self.deadline = self.loop.time() + KEEP_ALIVE + self.limits.seconds
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self.answer(HTTPStatus.BAD_REQUEST, "this is no HTTP request")

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def answer(self, status: HTTPStatus, message: str) -> None:
        """Answer without the application, and close."""
        content = json.dumps({"error": message}).encode()
        head = (
            f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        if self.cycle is not None and not self.is_idle:
            self.cycle.disconnected = True  # what the application still says is for nobody
            self.cycle.message_event.set()
        self.transport.write(head.encode() + content)
        self.transport.close()
        self.deadline = self.loop.time() + 1

    def cut_if_late(self, now: float) -> None:
        if now < self.deadline:
            return
        if self._began and self.is_idle and not self.transport.is_closing():
            self.answer(HTTPStatus.REQUEST_TIMEOUT, "the head of the request took too long")
        else:
            self.transport.abort()


def connection_type(limits: Limits) -> type[asyncio.Protocol]:
    base: type[asyncio.Protocol]
    if find_spec("httptools"):
        from oaxe.serving.parser import HttpTools

        base = HttpTools
    else:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        base = H11Protocol
    return type("Connection", (Connection, base), {"limits": limits})


class DeadlineServer(Server):
    """Until :meth:`stop`; requests that were sent before it are answered, but not for ever.

    Args:
        app: the ASGI application.
        on_stop: is called when the server is told to stop, before it closes anything.

    Attributes:
        on_start: is called when it listens, also to signals.
    """

    def __init__(self, app: Any, limits: Limits, on_stop: Callable[[], None]) -> None:
        self._limits, self._on_stop = limits, on_stop
        self.on_start: Callable[[], None] = lambda: None
        config = Config(
            app,
            http=connection_type(limits),
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            backlog=1_024,
        )
        super().__init__(config)
        self.unanswered = 0  # requests, when the deadline came

    def stop(self) -> None:
        """Stop as soon as all is answered; the second time, at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: object) -> None:
        self.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            connection.cut_if_late(now)  # type: ignore[union-attr]
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        deadline = time.monotonic() + self._limits.stop_seconds
        self._on_stop()
        await asyncio.sleep(MOMENT)
        for listener in self.servers:
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and not self.force_exit:
            if time.monotonic() > deadline:
                break
            await self.on_tick(1)
            await asyncio.sleep(0.02)
        self.unanswered = len(state.tasks)
        for connection in list(state.connections):
            connection.transport.abort()
        while state.tasks and time.monotonic() < deadline + MOMENT:  # they see that nobody listens
            await asyncio.sleep(0.01)
