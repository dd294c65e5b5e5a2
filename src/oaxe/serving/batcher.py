"""What several people ask at the same time is translated together."""

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
    """One thread translates; whatever has arrived while it was busy is its next batch.

    So nobody waits for others to come, and under load batches grow by themselves.

    Args:
        translate: sentences to translations, as many as were given.
        most: sentences of a batch, unless a single request has more.
    """

    def __init__(self, translate: Translate, most: int = 1_024) -> None:
        self._translate, self._most = translate, most
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="translate", daemon=True)
        self._thread.start()

    def __call__(self, sentences: Sequence[str]) -> list[str]:
        """Wait for the translations; raises what translating raised."""
        request = Request(sentences)
        self._waiting.put(request)
        return request.answer.result()

    def close(self) -> None:
        """Translate what is waiting, then stop."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while request := self._waiting.get():
            batch = [request]
            while sum(len(r.sentences) for r in batch) < self._most:
                try:
                    another = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if another is None:
                    self._waiting.put(None)  # close() comes after this batch
                    break
                batch.append(another)
            self._answer(batch)

    def _answer(self, batch: list[Request]) -> None:
        try:
            found = iter(self._translate([s for request in batch for s in request.sentences]))
        except Exception as error:
            if len(batch) > 1:  # one of them is to blame; the others get their answer
                for request in batch:
                    self._answer([request])
            else:
                batch[0].answer.set_exception(error)
            return
        for request in batch:
            request.answer.set_result([next(found) for _ in request.sentences])
