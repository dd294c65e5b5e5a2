"""Results of a thread in an event loop."""

import asyncio
import threading
from concurrent.futures import Future
from unittest import mock

from oaxe.serving.arrivals import Arrivals


def test_the_loop_is_woken_once_for_all_that_is_done() -> None:
    async def run() -> int:
        loop, arrivals = asyncio.get_running_loop(), Arrivals()
        with mock.patch.object(
            loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe
        ) as wakes:
            for _ in range(2):
                results = [Future[int]() for _ in range(50)]
                waiting = [arrivals.of(result) for result in results]
                thread = threading.Thread(target=finish, args=[results])
                thread.start()
                thread.join()  # the loop is busy meanwhile
                assert not any(arrival.done() for arrival in waiting)
                await asyncio.wait_for(asyncio.gather(*waiting), 20)
            return wakes.call_count

    assert asyncio.run(run()) == 2


def test_none_is_lost() -> None:
    """Results come while others are handled."""

    async def run() -> None:
        arrivals = Arrivals()
        results = [Future[int]() for _ in range(5_000)]
        waiting = [arrivals.of(result) for result in results]
        thread = threading.Thread(target=finish, args=[results])
        thread.start()
        for arrival in waiting:
            await asyncio.wait_for(arrival, 20)
        thread.join()

    asyncio.run(run())


def finish(results: list[Future[int]]) -> None:
    for number, result in enumerate(results):
        if number % 3:
            result.set_result(number)
        else:
            result.set_exception(ValueError())
