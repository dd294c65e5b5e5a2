"""Batches of requests."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from unittest import mock

import pytest

from oaxe.serving.batcher import FEW, Batcher, BusyError
from tests.serving.samples import wait_until


class Slow:
    """Writes down what it is asked, and answers when it may."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int]] = []
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, model: str, sentences: Sequence[str]) -> list[str]:
        self.batches.append((model, len(sentences)))
        self.began.set()
        self.go.wait(20)
        if "bad" in sentences:
            raise ValueError("a bad sentence")
        return [model + sentence for sentence in sentences]


def refuse_x(model: str, sentences: Sequence[str]) -> None:
    if "x" in sentences:
        raise KeyError("x")


def test_requests_while_busy_are_one_batch() -> None:
    slow = Slow()
    sizes: list[int] = []
    batcher = Batcher(slow, max_batch=8, watch=sizes.append)
    answers = [batcher.submit("a", ["0"])]
    slow.began.wait(20)
    answers += [batcher.submit("a", [f"{i}", "x"]) for i in range(1, 8)]
    assert batcher.waiting == 14
    slow.go.set()
    assert [answer.result(20)[0] for answer in answers] == [f"a{i}" for i in range(8)]
    assert batcher.close(20)
    assert slow.batches == [("a", 1), ("a", 8), ("a", 6)]
    assert sizes == [1, 8, 6]
    assert batcher.waiting == 0


def test_answers_of_a_batch_are_given_in_one_call() -> None:
    slow = Slow()
    calls = list[Callable[[], None]]()
    batcher = Batcher(slow, refuse_x, call=calls.append)
    answers = [batcher.submit("", ["0"])]
    slow.began.wait(20)
    answers += [batcher.submit("", [word]) for word in ("1", "x", "2", "bad")]
    slow.go.set()
    assert batcher.close(20)
    assert len(calls) == 3  # the first, the refused one, and the others
    assert not any(answer.done() for answer in answers)
    for call in calls:
        call()
    assert [answers[i].result() for i in (0, 1, 3)] == [["0"], ["1"], ["2"]]
    assert isinstance(answers[2].exception(), KeyError)
    assert isinstance(answers[4].exception(), ValueError)


def test_few_wait_for_others_while_many_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oaxe.serving.batcher.PAUSE", 60)
    slow = Slow()
    batcher = Batcher(slow, threads=2)
    answers = [batcher.submit("", ["0"] * 8)]
    slow.began.wait(20)
    answers += [batcher.submit("", ["1"] * 2) for _ in range(4)]
    wait_until(lambda: len(slow.batches) == 2)
    answers += [batcher.submit("", ["2"])]
    slow.go.set()
    assert [len(answer.result(20)) for answer in answers] == [8, 2, 2, 2, 2, 1]
    assert slow.batches == [("", 8), ("", 8), ("", 1)]
    assert batcher.close(20)


def test_few_do_not_wait_long() -> None:
    slow = Slow()
    batcher = Batcher(slow, threads=2)
    answers = [batcher.submit("", ["0"] * 8)]
    slow.began.wait(20)
    answers += [batcher.submit("", ["1"])]
    wait_until(lambda: len(slow.batches) == 2)  # while the first is translated
    slow.go.set()
    assert [len(answer.result(20)) for answer in answers] == [8, 1]
    assert batcher.close(20)


def test_a_large_request_does_not_keep_others_waiting() -> None:
    slow = Slow()
    batcher = Batcher(slow, max_batch=4)
    first = batcher.submit("a", ["0"])
    slow.began.wait(20)
    large = batcher.submit("b", [f"{i}" for i in range(10)])
    others = [batcher.submit("b", ["x"]), batcher.submit("a", ["y"])]
    slow.go.set()
    assert large.result(20) == [f"b{i}" for i in range(10)]
    assert [first.result(20), *(other.result(20) for other in others)] == [["a0"], ["bx"], ["ay"]]
    # after a part of the large one, the others; then it fills up batches
    assert slow.batches == [("a", 1), ("b", 4), ("b", 4), ("a", 1), ("b", 3)]
    assert batcher.close(20)
    assert batcher.waiting == 0


def test_the_rest_of_a_cancelled_request_is_dropped() -> None:
    slow = Slow()
    batcher = Batcher(slow, max_batch=4)
    large = batcher.submit("", ["0"] * 100)
    slow.began.wait(20)
    assert batcher.waiting == 96
    other = batcher.submit("", ["1"])
    assert large.cancel()
    slow.go.set()
    assert other.result(20) == ["1"]
    assert batcher.close(20)
    assert slow.batches == [("", 4), ("", 1)]
    assert batcher.waiting == 0
    assert Batcher(slow).submit("", []).result(20) == []


def test_a_batch_is_for_one_model_and_the_oldest_request_is_in_it() -> None:
    slow = Slow()
    batcher = Batcher(slow)
    answers = [batcher.submit("a", ["0"])]
    slow.began.wait(20)
    answers += [batcher.submit("ba"[i % 2], [f"{i}"]) for i in range(1, 6)]
    slow.go.set()
    assert [a.result(20) for a in answers] == [["a0"], ["a1"], ["b2"], ["a3"], ["b4"], ["a5"]]
    assert slow.batches == [("a", 1), ("a", 3), ("b", 2)]
    batcher.close()


def test_only_the_request_that_fails_fails() -> None:
    slow = Slow()
    batcher = Batcher(slow, refuse_x)
    first = batcher.submit("", ["0"])
    slow.began.wait(20)
    words = ["1", "bad", "2", "x", "3"]
    answers = [batcher.submit("", [word]) for word in words]
    answers[4].cancel()
    slow.go.set()
    assert [answers[i].result(20) for i in (0, 2)] == [["1"], ["2"]]
    with pytest.raises(ValueError, match="bad"):
        answers[1].result(20)
    with pytest.raises(KeyError):
        answers[3].result(20)
    batcher.close()
    assert first.result() == ["0"]
    assert slow.batches == [("", 1), ("", 3), ("", 1), ("", 1), ("", 1)]  # not the cancelled one
    assert batcher.waiting == 0


def test_refuses_what_would_wait_too_long() -> None:
    slow = Slow()
    batcher = Batcher(slow, max_batch=9, max_waiting=4)
    batcher.submit("", ["0"] * 9)
    slow.began.wait(20)
    answers = [batcher.submit("", ["1"] * 9)]  # alone it may be larger
    with pytest.raises(BusyError):
        batcher.submit("", ["2"])
    assert not batcher.close(0.05)
    with pytest.raises(BusyError):
        batcher.submit("", ["3"])
    slow.go.set()
    assert len(answers[0].result(20)) == 9  # what was accepted is answered
    assert batcher.close(20)


def test_tells_how_long_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the pace of large batches, until nothing waits."""
    clock = mock.Mock(**{"monotonic.return_value": 0.0})
    monkeypatch.setattr("oaxe.serving.batcher.time", clock)
    told = list[float]()

    def slow(model: str, sentences: Sequence[str]) -> list[str]:
        told.append(batcher.seconds_to_wait)
        if len(told) == 1:
            later.append(batcher.submit("", ["0"] * 3 * FEW))
        clock.monotonic.return_value += 8.0 if len(told) == 2 else 4.0
        return list(sentences)

    later = list[Future[list[str]]]()
    batcher = Batcher[str, str](slow, max_batch=FEW)
    batcher.submit("", ["0"]).result(20)
    later[0].result(20)
    # Not known; nor by one sentence; 8 s a batch for two; (8 / 2 + 4) / (1 / 2 + 1) for one.
    assert told == pytest.approx([0, 0, 16, 16 / 3])
    wait_until(lambda: batcher._seconds == 0)
    batcher.waiting = 100
    assert batcher.seconds_to_wait == 0
    assert batcher.close(20)


def test_batches_can_be_small() -> None:
    told = list[float]()

    def translate(model: str, sentences: Sequence[str]) -> list[str]:
        told.append(batcher.seconds_to_wait)
        return list(sentences)

    batcher = Batcher[str, str](translate, max_batch=2)
    batcher.submit("", ["0"] * 4).result(20)
    assert told[0] == 0 < told[1]
    assert batcher.close(20)


def test_two_threads_translate_each_request_once() -> None:
    """Batches that overlap, large requests in parts, and others that are cancelled."""
    both, seen = threading.Barrier(2), list[str]()

    def meet(model: str, sentences: Sequence[str]) -> list[str]:
        if "both" in sentences:
            both.wait(20)  # fails unless two batches are translated at the same time
        seen.extend(sentences)
        return [model + sentence for sentence in sentences]

    batcher = Batcher(meet, max_batch=4, max_waiting=10_000, threads=2)
    for model in "ab":  # for different models: not in one batch
        batcher.submit(model, ["both"])
    requests = [[f"{i} {k}" for k in range(i % 11 + 1)] for i in range(400)]
    answers = [batcher.submit("ab"[i % 2], request) for i, request in enumerate(requests)]
    for i, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        assert answer.result(20) == ["ab"[i % 2] + sentence for sentence in request]
    assert batcher.is_alive
    assert batcher.close(20)
    assert not batcher.is_alive
    assert sorted(seen) == sorted(["both", "both", *(s for request in requests for s in request)])
    assert batcher.waiting == batcher._running == 0
