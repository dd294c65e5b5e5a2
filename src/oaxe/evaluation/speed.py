"""Speed: latency of single sentences, throughput of the whole test set."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from oaxe.decoding.translator import Translator
from oaxe.support.timing import take_turns, wall_clock

WARM_UP = 10  # sentences
TURN = 10  # sentences of a turn: with one, the caches would hold another model's weights
REPEATS = 3  # of the whole test set
Translate = Callable[[list[str]], object]


def measure_speed(
    translators: Mapping[str, Translator],
    sources: Sequence[str],
    *,
    sentences: int = 100,
    batch_tokens: int = 16384,
    bf16: bool = False,
) -> dict[str, dict[str, Any]]:
    """Latency and throughput of each translator, from text to text. Translators take turns.

    A translation is text on the host, so no GPU work is pending when the clock is read.

    Args:
        sources: the test set. Blank lines take no time and are left out; without other lines the
            result is empty.
        sentences: number of sentences, spread evenly, that are translated one at a time.
    """
    alone = {name: partial(each.translate, bf16=bf16) for name, each in translators.items()}
    together = {
        name: partial(each.translate, batch_tokens=batch_tokens, bf16=bf16)
        for name, each in translators.items()
    }
    return {
        name: {
            **found,
            "device": str(translators[name].system.device),
            "precision": "bf16" if bf16 else getattr(translators[name].system, "precision", "fp32"),
            "batch_tokens": batch_tokens,
            "decoding": translators[name].decoding,
            "cuda_graphs": translators[name].cuda_graphs,  # used on a GPU
        }
        for name, found in timings(alone, together, sources, sentences).items()
    }


def timings(
    alone: Mapping[str, Translate],
    together: Mapping[str, Translate],
    sources: Sequence[str],
    sentences: int,
) -> dict[str, dict[str, Any]]:
    """The same of functions: one translates single sentences, another the whole test set."""
    lines = [line for line in sources if line.strip()]
    if not lines:
        return {}
    spread = np.linspace(0, len(lines) - 1, min(sentences, len(lines))).astype(int)
    some = [lines[i] for i in spread]
    warm_up = sorted(some, key=len)[:: max(1, len(some) // WARM_UP)][:WARM_UP]  # of all lengths
    latencies: dict[str, list[float]] = {name: [] for name in alone}
    every = warm_up + some
    for start in range(0, len(every), TURN):
        for name, translate in alone.items():
            for line in every[start : start + TURN]:
                latencies[name].append(1e3 * wall_clock(partial(translate, [line])))
    whole: dict[str, Callable[[], object]] = {
        name: partial(translate, lines) for name, translate in together.items()
    }
    rounds: dict[str, list[float]] = {name: [] for name in together}
    for name, took in take_turns(whole, REPEATS):
        rounds[name].append(took)
    return {
        name: {
            "latency_ms": {
                "median": median(latencies[name][len(warm_up) :]),
                "p95": float(np.percentile(latencies[name][len(warm_up) :], 95)),
                "sentences": len(some),
            },
            "sentences_per_second": len(lines) / median(rounds[name]),
        }
        for name in alone
    }


def speed_up(own: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, float]:
    """How many times faster than the baseline."""
    return {
        "latency": baseline["latency_ms"]["median"] / own["latency_ms"]["median"],
        "throughput": own["sentences_per_second"] / baseline["sentences_per_second"],
    }
