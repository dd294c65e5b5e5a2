"""Batches of requests."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from oaxe.serving.batcher import Batcher


def test_requests_while_busy_are_one_batch() -> None:
    batches: list[int] = []
    busy, first = threading.Event(), threading.Event()

    def slow(sentences: Sequence[str]) -> list[str]:
        batches.append(len(sentences))
        first.set()
        busy.wait(20)
        return list(sentences)

    batcher = Batcher(slow, max_sentences=8)
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(batcher, ["0"])]
        first.wait(20)
        answers += [pool.submit(batcher, [f"{i}", "x"]) for i in range(1, 8)]
        deadline = time.monotonic() + 20
        while batcher._waiting.qsize() < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        busy.set()
        found = [answer.result(20)[0] for answer in answers]
    batcher.close()
    assert found == [f"{i}" for i in range(8)]
    assert batches == [1, 8, 6]
