"""What /metrics says, in the text format of Prometheus."""

from collections.abc import Callable
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)
KIND = CONTENT_TYPE_PLAIN_0_0_4


class Metrics:
    """Counters of one server. Nothing of a text or of a client is kept."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "oaxe_requests", "Requests by path and status.", ["path", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "oaxe_request_seconds", "Seconds from a request's head to its answer.", ["path"],
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self._sentences = Counter(
            "oaxe_sentences", "Sentences translated.", ["model"], registry=self.registry
        )
        self._characters = Counter(
            "oaxe_characters", "Characters translated.", ["model"], registry=self.registry
        )
        self._batches = Histogram(
            "oaxe_batch_sentences", "Sentences of a batch.",
            buckets=SENTENCES, registry=self.registry,
        )  # fmt: skip

        self._one: Any = cache(lambda metric, *labels: metric.labels(*labels))

    def request(self, path: str, status: int, seconds: float) -> None:
        self._one(self._requests, path, status).inc()
        self._one(self._seconds, path).observe(seconds)

    def translated(self, model: str, sentences: int, characters: int) -> None:
        self._one(self._sentences, model).inc(sentences)
        self._one(self._characters, model).inc(characters)

    def batch(self, sentences: int) -> None:
        self._batches.observe(sentences)

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """A number that is asked for when somebody looks."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self.registry)
