"""Around every request: who may ask, an id, a line in the log, and a count."""

import ipaddress
import json
import logging
import random
import re
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oaxe.serving.metrics import Metrics
from oaxe.support.errors import UserError

ACCESS = logging.getLogger("oaxe.access")
REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
NO_SNIFFING, CLOSE = (b"x-content-type-options", b"nosniff"), (b"connection", b"close")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Args:
        hosts: names that the server is reached by, besides localhost and addresses: a page of
            another site whose name was changed to this address (DNS rebinding) has another one.
        origins: sites whose pages may ask from a browser; ``*`` is all.
        api_keys: one of these is needed to translate, if there are any.
    """

    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    api_keys: Collection[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not re.fullmatch(r"\*|[^\s/:]+|\[.*\]", host):
                raise UserError(
                    f"--allow-host {host} is no name such as example.org; leave out https:// and "
                    "the port, or give * for any"
                )
        for origin in self.origins:
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/]+", origin):
                raise UserError(
                    f"--allow-origin {origin} is no site such as https://example.org; give it as "
                    "a browser does, without a path, or * for all"
                )

    def is_host(self, host: str) -> bool:
        """Whether the header Host is one of ours."""
        name = host_name(host)
        if "*" in self.hosts or name in ("localhost", *map(str.lower, self.hosts)):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def is_origin(self, origin: str | None, host: str) -> bool:
        """Whether a page of that origin may ask: our own, and those that are allowed."""
        if origin is None or "*" in self.origins or origin in self.origins:
            return True
        return origin.partition("://")[2].lower() == host.lower()

    def has_key(self, given: str | None) -> bool:
        wanted = (given or "").encode()
        return any(secrets.compare_digest(key.encode(), wanted) for key in self.api_keys)


def read_keys(path: Path) -> list[str]:
    """The API keys of a file: one a line, blank lines and those with # in front left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the API keys {path}: {error}; give a text file with one key a line"
        ) from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise UserError(f"there is no API key in {path}; write one a line")
    return keys


def host_name(host: str) -> str:
    """Without its port.

    Example:
        >>> host_name("Example.org:80"), host_name("[::1]:80")
        ('example.org', '[::1]')
    """
    return re.sub(r":\d*$", "", host).lower()


class Guard:
    """ASGI middleware, outside of all other.

    Args:
        paths: those that are counted by name.
        access_log: whether to write a line for each request; never with its text.
        is_stopping: connections are closed after their answers then.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        metrics: Metrics,
        paths: Collection[str],
        *,
        access_log: bool,
    ) -> None:
        self._app, self._access, self._metrics = app, access, metrics
        self._paths, self._access_log = frozenset(paths), access_log
        self.is_stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        start, status = time.perf_counter(), 0
        headers = dict(reversed(scope["headers"]))  # of equal names the first counts
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        # No secret: the system's random numbers would make the threads take turns.
        identity = given if REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                marks = [(b"x-request-id", identity.encode()), NO_SNIFFING]
                marks += [CLOSE] * self.is_stopping
                message["headers"] = [*message["headers"], *marks]
            await send(message)

        try:
            await self._answer(scope, receive, send_marked, headers)
        finally:
            self._note(scope, status, time.perf_counter() - start, identity)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[bytes, bytes]
    ) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers[b"origin"].decode("latin-1") if b"origin" in headers else None
        app = self._app
        if not self._access.is_host(host):
            app = forbidden(f"this server is not called {host!r}; --allow-host adds a name")
        elif scope["method"] not in SAFE_METHODS and not self._access.is_origin(origin, host):
            app = forbidden(f"pages of {origin!r} may not ask; --allow-origin adds a site")
        await app(scope, receive, send)

    def _note(self, scope: Scope, status: int, seconds: float, identity: str) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        self._metrics.request(path, status, seconds)
        if self._access_log:
            client = scope["client"][0] if scope.get("client") else "-"
            request = json.dumps(f"{scope['method']} {scope['path']}"[:200])  # no line breaks
            ACCESS.info("%s %s %d %.1f ms %s", client, request, status, 1e3 * seconds, identity)


def forbidden(message: str) -> ASGIApp:
    return JSONResponse({"error": message}, 403)
