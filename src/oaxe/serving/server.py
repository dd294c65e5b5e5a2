"""``oaxe serve``: translation over HTTP, for programs and for people.

curl localhost:8000/translate --json '{"q": "A man rides a bike.", "source": "en", "target": "de"}'
{"translatedText": "Ein Mann fährt Rad.", "model": "en-de", "milliseconds": 12.3}
"""

import gc
import logging
import os
import socket
import sys
from collections.abc import Callable

from rich.console import Console

from oaxe.serving.application import Service
from oaxe.serving.connections import DeadlineServer
from oaxe.support.errors import UserError

LOGGERS = {"oaxe.access": logging.INFO, "uvicorn.error": logging.ERROR}


class Endpoint:
    """A service that listens; the address is known before it serves.

    Raises:
        UserError: the address or the port cannot be had.
    """

    def __init__(self, service: Service, host: str, port: int) -> None:
        self.service = service
        self.socket = listen(host, port)
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._server = DeadlineServer(service.app, service.limits, self._begin_to_stop)
        connections = "Connections that are open."
        service.metrics.gauge("oaxe_connections", connections, lambda: self.n_connections)

    @property
    def n_connections(self) -> int:
        return len(self._server.server_state.connections)

    def run(self, on_start: Callable[[], None] = lambda: None) -> int:
        """Serve until :meth:`stop`, Ctrl-C or SIGTERM; how many requests were not answered.

        Args:
            on_start: is called when signals are heard.
        """
        self._server.on_start = on_start
        with self.socket:
            self._server.run([self.socket])
        return self._server.unanswered

    def stop(self) -> None:
        self._server.stop()

    def _begin_to_stop(self) -> None:
        self.service.app.is_stopping = True


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose others with --host "
            "and --port"
        ) from None


def serve(service: Service, *, host: str, port: int, console: Console) -> None:
    """Serve until Ctrl-C or SIGTERM; what was accepted is answered first, within the deadline."""
    log_to_stderr()
    for model in service.models.by_name.values():
        model.translate(["."])  # warm up before the first request
    endpoint = Endpoint(service, host, port)
    gc.collect()
    gc.freeze()  # what is there stays: to look through it again and again takes time
    said = f"{endpoint.url}, Ctrl-C stops it"
    unanswered = endpoint.run(lambda: console.print(said))
    gc.unfreeze()
    if unanswered:
        requests = "1 request was" if unanswered == 1 else f"{unanswered} requests were"
        print(f"stopped at the deadline; {requests} not answered", file=sys.stderr, flush=True)
    if not service.batcher.close(0.5):  # it translates for clients that are gone
        os._exit(1 if unanswered else 0)
    if unanswered:
        raise SystemExit(1)


def log_to_stderr() -> None:
    """The access log, and errors of ours; nothing about clients that hang up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in LOGGERS.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
