"""Latency and throughput, measured with a clock under our control."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from oaxe.decoding.translator import Translator
from oaxe.evaluation.speed import WARM_UP, measure_speed, speed_up
from oaxe.text.subwords import Subwords
from tests.evaluation.samples import translator


def test_latency_and_throughput(monkeypatch: pytest.MonkeyPatch, subwords: Subwords) -> None:
    now, calls = [0.0], dict[str, list[int]](slow=[], fast=[])

    class Timed:
        """Takes a known time for each sentence, ten times as long for the one called "late"."""

        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds
            self.system, self.decoding, self.cuda_graphs = real.system, real.decoding, False

        def translate(self, lines: Sequence[str], **_: Any) -> list[str]:
            calls[self.name].append(len(lines))
            now[0] += sum(self.seconds * (10 if line == "late" else 1) for line in lines)
            return list(lines)

    real = translator(subwords, "cmlm")
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    lines = ["a"] * 18 + ["late", "a"] + [" "]
    timed = {"slow": Timed("slow", 0.03), "fast": Timed("fast", 0.002)}
    found = measure_speed(cast(dict[str, Translator], timed), lines, sentences=50)
    slow, fast = found["slow"], found["fast"]
    assert slow["latency_ms"]["sentences"] == 20  # the blank line is not one
    assert slow["latency_ms"]["median"] == pytest.approx(30)
    assert 30 < slow["latency_ms"]["p95"] < 300
    assert slow["sentences_per_second"] == pytest.approx(20 / (0.03 * 29))
    assert speed_up(fast, slow) == pytest.approx({"latency": 15, "throughput": 15})
    assert calls["slow"] == [1] * (WARM_UP + 20) + [20] * 4  # one to warm up, three that count
