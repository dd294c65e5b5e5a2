"""Batches of the requests that arrive while the model is busy."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

Translate = Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True)
class Request:
    sentences: Sequence[str]
    answer: "Future[list[str]]" = field(default_factory=Future)


class Batcher:
    """One thread translates. The requests that arrived meanwhile are its next batch.

    So no request waits for others, and batches grow with the load.

    Args:
        translate: as many translations as sentences.
        max_sentences: sentences of a batch, unless a single request has more.
    """

    def __init__(self, translate: Translate, max_sentences: int = 1_024) -> None:
        self._translate, self._max_sentences = translate, max_sentences
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="translate", daemon=True)
        self._thread.start()

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """Wait for the translations. An exception of ``translate`` is raised here."""
        request = Request(sentences)
        self._waiting.put(request)
        return request.answer.result()

    def close(self) -> None:
        """Translate the requests that are waiting, then stop."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while request := self._waiting.get():
            batch = [request]
            while sum(len(r.sentences) for r in batch) < self._max_sentences:
                try:
                    another = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if another is None:
                    self._waiting.put(None)  # stop after this batch
                    break
                batch.append(another)
            self._answer(batch)

    def _answer(self, batch: list[Request]) -> None:
        try:
            found = iter(self._translate([s for request in batch for s in request.sentences]))
        except Exception as error:
            if len(batch) > 1:  # only the request that causes it gets the exception
                for request in batch:
                    self._answer([request])
            else:
                batch[0].answer.set_exception(error)
            return
        for request in batch:
            request.answer.set_result([next(found) for _ in request.sentences])
