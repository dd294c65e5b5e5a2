"""Speed: latency of single sentences, throughput of the whole test set."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from oaxe.decoding.translator import Translator
from oaxe.support.timing import take_turns, wall_clock

WARM_UP = 10  # sentences
REPEATS = 3  # of the whole test set


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
    lines = [line for line in sources if line.strip()]
    if not lines:
        return {}
    spread = np.linspace(0, len(lines) - 1, min(sentences, len(lines))).astype(int)
    some = [lines[i] for i in spread]
    warm_up = sorted(some, key=len)[:: max(1, len(some) // WARM_UP)][:WARM_UP]  # of all lengths
    latencies: dict[str, list[float]] = {name: [] for name in translators}
    for line in warm_up + some:
        for name, translator in translators.items():
            took = wall_clock(partial(translator.translate, [line], bf16=bf16))
            latencies[name].append(1e3 * took)
    whole: dict[str, Callable[[], object]] = {
        name: partial(translator.translate, lines, batch_tokens=batch_tokens, bf16=bf16)
        for name, translator in translators.items()
    }
    rounds: dict[str, list[float]] = {name: [] for name in translators}
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
            "device": str(translator.system.device),
            "precision": "bf16" if bf16 else getattr(translator.system, "precision", "fp32"),
            "batch_tokens": batch_tokens,
            "decoding": translator.decoding,
            "cuda_graphs": translator.cuda_graphs,  # used on a GPU
        }
        for name, translator in translators.items()
    }


def speed_up(own: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, float]:
    """How many times faster than the baseline."""
    return {
        "latency": baseline["latency_ms"]["median"] / own["latency_ms"]["median"],
        "throughput": own["sentences_per_second"] / baseline["sentences_per_second"],
    }
