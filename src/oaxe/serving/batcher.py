"""Batches of the requests that arrive while the model is busy."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Model = TypeVar("Model")
Answer = TypeVar("Answer")


class BusyError(Exception):
    """Too many sentences wait already."""


@dataclass(frozen=True)
class Request(Generic[Model, Answer]):
    model: Model
    sentences: Sequence[str]
    answers: "Future[list[Answer]]" = field(default_factory=Future)

    @property
    def size(self) -> int:
        return max(1, len(self.sentences))


class Batcher(Generic[Model, Answer]):
    """One thread translates. The requests for one model that arrived meanwhile are its next batch.

    So no request waits for others, and batches grow with the load.

    Args:
        translate: an answer for each sentence, by one of the models.
        check: raises for sentences that cannot be translated; that request alone fails.
        max_batch: sentences of a batch, unless a single request has more.
        max_waiting: sentences that may wait, unless a single request has more.
        watch: is told the number of sentences of each batch.
    """

    def __init__(
        self,
        translate: Callable[[Model, Sequence[str]], list[Answer]],
        check: Callable[[Model, Sequence[str]], None] = lambda model, sentences: None,
        *,
        max_batch: int = 256,
        max_waiting: int = 4_096,
        watch: Callable[[int], None] = lambda sentences: None,
    ) -> None:
        self._translate, self._check, self._watch = translate, check, watch
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._requests: deque[Request[Model, Answer]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.waiting = 0  # sentences
        self._thread = threading.Thread(target=self._work, name="translate", daemon=True)
        self._thread.start()

    def submit(self, model: Model, sentences: Sequence[str]) -> "Future[list[Answer]]":
        """What will hold the answers, or the exception of ``translate``; it can be cancelled.

        Raises:
            BusyError: try again later.
        """
        request = Request[Model, Answer](model, sentences)
        with self._changed:
            if self._closed or (self.waiting and self.waiting + request.size > self._max_waiting):
                raise BusyError
            self._requests.append(request)
            self.waiting += request.size
            self._changed.notify()
        return request.answers

    def close(self, seconds: float | None = None) -> bool:
        """Translate the requests that are waiting, then stop; whether that took no longer."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while batch := self._next():
            batch = [request for request in batch if self._starts(request)]
            if batch:
                self._watch(sum(len(request.sentences) for request in batch))
                self._answer(batch)

    def _next(self) -> list[Request[Model, Answer]]:
        """The request that waits longest, and others for its model; none at the end."""
        with self._changed:
            while not self._requests:
                if self._closed:
                    return []
                self._changed.wait()
            first = self._requests.popleft()
            batch, others, size = [first], deque[Request[Model, Answer]](), first.size
            for request in self._requests:
                if request.model == first.model and size + request.size <= self._max_batch:
                    batch.append(request)
                    size += request.size
                else:
                    others.append(request)
            self._requests = others
            self.waiting -= size
            return batch

    def _starts(self, request: Request[Model, Answer]) -> bool:
        if not request.answers.set_running_or_notify_cancel():
            return False
        try:
            self._check(request.model, request.sentences)
        except Exception as error:
            request.answers.set_exception(error)
            return False
        return True

    def _answer(self, batch: list[Request[Model, Answer]]) -> None:
        sentences = [sentence for request in batch for sentence in request.sentences]
        try:
            found = iter(self._translate(batch[0].model, sentences))
        except Exception as error:
            if len(batch) > 1:  # only the request that causes it gets the exception
                for request in batch:
                    self._answer([request])
            else:
                batch[0].answers.set_exception(error)
            return
        for request in batch:
            request.answers.set_result([next(found) for _ in request.sentences])
