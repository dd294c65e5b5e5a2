"""What a request may cost: bounds that hold before any work is done for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Memory is bounded by ``connections`` times ``bytes`` for requests that are being sent, and by
    ``waiting`` sentences for those that have arrived."""

    bytes: int = 2**18  # of a request's body
    characters: int = 20_000  # of a request's text
    sentences: int = 1_024  # of a request
    batch: int = 256  # sentences that are translated together
    waiting: int = 4_096  # sentences of all requests
    connections: int = 512
    requests: int = 0  # to translate, of a client in a minute; 0: any number
    seconds: float = 30  # for a request to arrive, and again to be answered
    stop_seconds: float = 30  # to answer what was accepted, when the server is stopped
