"""How often a client may ask: a share of requests that it uses up, and that fills again."""

import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_CLIENTS = 10_000  # that are remembered
MINUTE = 60.0


@dataclass
class Share:
    left: float  # requests
    seen: float  # when that was so


class Rates:
    """So many requests a minute of each client, together or spread over it.

    Args:
        a_minute: 0 is any number.
        clock: seconds.

    Example:
        >>> rates = Rates(2, lambda: 0.0)
        >>> [rates.seconds_to_wait("client") for _ in range(3)]
        [0.0, 0.0, 30.0]
    """

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute, self._clock = a_minute, clock
        self._shares: dict[str, Share] = {}

    def seconds_to_wait(self, client: str) -> float:
        """0 if it may ask now, which is counted; or how long until it may."""
        if not self._a_minute:
            return 0.0
        now, share = self._clock(), self._shares.pop(client, None)
        left = float(self._a_minute) if share is None else self._filled(share, now)
        may = left >= 1
        # The last that asked is the last in the order, which is forgotten last.
        self._shares[client] = Share(left - may, now)
        if len(self._shares) > MOST_CLIENTS:
            del self._shares[next(iter(self._shares))]
        return 0.0 if may else (1 - left) * MINUTE / self._a_minute

    def _filled(self, share: Share, now: float) -> float:
        return min(self._a_minute, share.left + (now - share.seen) * self._a_minute / MINUTE)
