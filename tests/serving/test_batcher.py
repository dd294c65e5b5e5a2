"""Batches of requests."""

import threading
import time
from collections.abc import Sequence
from unittest import mock

import pytest

from oaxe.serving.batcher import Batcher, BusyError


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


def test_tells_how_long_to_wait() -> None:
    slow = Slow()
    batcher = Batcher(slow)
    assert batcher.seconds_to_wait == 0
    first = batcher.submit("", ["0"] * 2)
    slow.began.wait(20)
    time.sleep(0.1)
    slow.go.set()
    first.result(20)
    slow.go.clear()
    slow.began.clear()
    batcher.submit("", ["0"])
    slow.began.wait(20)
    batcher.submit("", ["0"] * 100)
    assert 5 < batcher.seconds_to_wait < 100  # 50 ms each
    slow.go.set()
    assert batcher.close(20)


def test_the_pace_is_that_of_large_batches_if_there_were_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = mock.Mock()
    clock.monotonic.return_value = 0.0
    monkeypatch.setattr("oaxe.serving.batcher.time", clock)

    def slow(model: str, sentences: Sequence[str]) -> list[str]:
        clock.monotonic.return_value += 1.0  # for one as for many
        return list(sentences)

    batcher = Batcher[str, str](slow)
    for count in (1, 100, 1):
        batcher.submit("m", ["a"] * count).result(20)
    assert batcher.close(20)
    batcher.waiting = 51
    assert batcher.seconds_to_wait == pytest.approx(1.75 * 51 / 51.25)  # halved, halved, whole
