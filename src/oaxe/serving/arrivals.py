"""Results of a thread, awaited in an event loop."""

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any


class Arrivals:
    """Wakes the loop once for all that is done by then, and not once for each result."""

    def __init__(self) -> None:
        self._done = deque[asyncio.Future[None]]()
        self._is_told = False

    def of(self, result: "Future[Any]") -> "asyncio.Future[None]":
        """What is done, in the loop that runs, once there is a result or an exception."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        result.add_done_callback(lambda _: self._tell(arrival))
        return arrival

    def _tell(self, arrival: "asyncio.Future[None]") -> None:
        """In the thread."""
        loop = arrival.get_loop()
        self._done.append(arrival)
        if not self._is_told and not loop.is_closed():
            self._is_told = True
            loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_told = False  # first: of what comes now, the loop is told again
        while self._done:
            settle(self._done.popleft())


def settle(arrival: "asyncio.Future[None]") -> None:
    if not arrival.done():
        arrival.set_result(None)
