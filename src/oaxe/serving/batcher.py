"""Batches of the requests that arrive while the model is busy."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

Model = TypeVar("Model")
Answer = TypeVar("Answer")
PAUSE = 0.01  # seconds that sentences wait for others, while a batch is translated
FEW = 16  # sentences of a batch that is too small to tell the pace of large ones


class BusyError(Exception):
    """Too many sentences wait already."""


@dataclass(eq=False)
class Request(Generic[Model, Answer]):
    model: Model
    sentences: Sequence[str]
    answers: "Future[list[Answer]]" = field(default_factory=Future)
    taken: int = 0  # sentences that are in a batch, or were
    found: list[Answer] = field(default_factory=list)
    error: Exception | None = None

    @property
    def left(self) -> int:
        return len(self.sentences) - self.taken

    @property
    def is_over(self) -> bool:
        return self.error is not None or len(self.found) == len(self.sentences)

    def finish(self) -> None:
        if not self.answers.set_running_or_notify_cancel():
            return
        if self.error:
            self.answers.set_exception(self.error)
        else:
            self.answers.set_result(self.found)


class Batcher(Generic[Model, Answer]):
    """Threads translate. The requests for one model that arrived meanwhile are the next batch.

    So batches grow with the load. A request waits for others only while a batch is translated, and
    no longer than until as many sentences wait as that has, or for a PAUSE. Of a request that is
    larger than a batch, the rest comes after the others that wait; a request that is cancelled is
    dropped.

    Args:
        translate: an answer for each sentence, by one of the models.
        check: raises for sentences that cannot be translated; that request alone fails.
        max_batch: sentences of a batch.
        max_waiting: sentences that may wait, unless a single request has more.
        threads: batches that are translated at the same time.
        watch: is told the number of sentences of each batch.
        call: calls what gives all requests of a batch their answers, such as in an event loop. It
            is woken once: threads that take turns with each answer take longer.
    """

    def __init__(
        self,
        translate: Callable[[Model, Sequence[str]], list[Answer]],
        check: Callable[[Model, Sequence[str]], None] = lambda model, sentences: None,
        *,
        max_batch: int = 256,
        max_waiting: int = 4_096,
        threads: int = 1,
        watch: Callable[[int], None] = lambda sentences: None,
        call: Callable[[Callable[[], None]], None] = lambda finish: finish(),
    ) -> None:
        self._translate, self._check, self._watch, self._call = translate, check, watch, call
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._requests: deque[Request[Model, Answer]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.waiting = 0  # sentences
        self._running = 0  # sentences
        self._seconds = self._sentences = 0.0  # of large batches, the last counting most
        self._busy = 0  # threads
        self._threads = [
            threading.Thread(target=self._work, name=f"translate {i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, model: Model, sentences: Sequence[str]) -> "Future[list[Answer]]":
        """What will hold the answers, or the exception of ``translate``; it can be cancelled.

        Raises:
            BusyError: try again later.
        """
        request = Request[Model, Answer](model, sentences)
        if not sentences:
            request.finish()
            return request.answers
        with self._changed:
            if self._closed or (self.waiting and self.waiting + request.left > self._max_waiting):
                raise BusyError
            self._requests.append(request)
            self.waiting += request.left
            if len(self._requests) == 1 or self._are_enough():
                self._changed.notify()
        return request.answers

    @property
    def seconds_to_wait(self) -> float:
        """How long a request would wait now, by the pace since nothing waited; 0 if not known."""
        pace = self._seconds / (self._sentences or 1.0)  # read once: the thread may forget it
        return (self.waiting + self._running) * pace

    @property
    def is_alive(self) -> bool:
        """Whether all threads are there that translate."""
        return all(thread.is_alive() for thread in self._threads)

    def close(self, seconds: float | None = None) -> bool:
        """Translate what is waiting, then stop; whether no thread took longer than its seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while batch := self._next():
            size = sum(count for _, count in batch)
            self._watch(size)
            start = time.monotonic()
            self._answer(batch)
            end = time.monotonic()
            with self._changed:
                # Alone a sentence takes longer than among others, who would be refused by its pace.
                if size >= min(FEW, self._max_batch):
                    self._sentences = self._sentences / 2 + size
                    self._seconds = self._seconds / 2 + (end - start) / self._busy
                self._busy -= 1
                self._running -= size
                for request, _ in batch:
                    if request.left and not request.error and not request.answers.done():
                        self._requests.append(request)
                    else:
                        self.waiting -= request.left
                self._changed.notify()
            if over := [request for request, _ in batch if request.is_over]:
                self._finish(over)

    def _next(self) -> list[tuple[Request[Model, Answer], int]]:
        """Requests for one model, with the sentences to take of each; none at the end."""
        batch, size = list[tuple[Request[Model, Answer], int]](), 0
        while not batch:
            with self._changed:
                while not self._requests:
                    if self._closed:
                        return []
                    self._seconds = self._sentences = 0.0  # it keeps up; others may come
                    self._changed.wait()
                self._changed.wait_for(self._are_enough, PAUSE)
                waiting, self._requests = self._requests, deque()
            later = deque[Request[Model, Answer]]()
            for request in waiting:
                count = min(request.left, self._max_batch - size)
                if not count or (batch and request.model != batch[0][0].model):
                    later.append(request)
                elif self._starts(request):
                    batch.append((request, count))
                    request.taken += count
                    size += count
            with self._changed:
                self._requests.extendleft(reversed(later))
                self.waiting -= size
                self._running += size
                self._busy += bool(batch)
                self._changed.notify()  # of what is left, another thread
        return batch

    def _are_enough(self) -> bool:
        """Whether as many wait as are translated now."""
        return self._closed or self.waiting >= self._running

    def _starts(self, request: Request[Model, Answer]) -> bool:
        """Whether it is still wanted and can be translated."""
        try:
            if not request.answers.cancelled():
                if not request.taken:
                    self._check(request.model, request.sentences)
                return True
        except Exception as error:
            request.error = error
            self._finish([request])
        with self._changed:
            self.waiting -= request.left
        return False

    def _finish(self, requests: list[Request[Model, Answer]]) -> None:
        def finish() -> None:
            for request in requests:
                request.finish()

        self._call(finish)

    def _answer(self, batch: list[tuple[Request[Model, Answer], int]]) -> None:
        pieces = [r.sentences[len(r.found) : len(r.found) + count] for r, count in batch]
        try:
            sentences = [sentence for piece in pieces for sentence in piece]
            found = iter(self._translate(batch[0][0].model, sentences))
        except Exception as error:
            if len(batch) > 1:  # only the request that causes it gets the exception
                for part in batch:
                    self._answer([part])
            else:
                batch[0][0].error = error
            return
        for request, count in batch:
            request.found += islice(found, count)
