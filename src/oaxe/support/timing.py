"""Wall-clock times of contenders that take turns, so that a busy moment affects all of them."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> str:
        """Fastest and slowest run, in milliseconds."""
        low, high = min(self.seconds) * 1e3, max(self.seconds) * 1e3
        digits = 0 if low >= 10 else 3
        return f"{low:.{digits}f}-{high:.{digits}f}"


def wall_clock(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def take_turns(
    contenders: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[Callable[[], object]], float] = wall_clock,
) -> Iterator[tuple[str, float]]:
    """Run every contender once to warm up, then in turns; yields name and seconds of each run.

    Each round has another order, since a run leaves caches full and the processor warm for the
    next one. The orders are the same in every call.
    """
    for run in contenders.values():
        run()
    shuffled = random.Random(0)
    for _ in range(repeats):
        for name in shuffled.sample(list(contenders), len(contenders)):
            yield name, clock(contenders[name])
