"""Speed: the wait for one sentence, and sentences a second where there are many."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from oaxe.decoding.translator import Translator
from oaxe.support.timing import Timing, take_turns, wall_clock

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
    """Latency and throughput of each translator, from text to text, taking turns.

    A translation is text on the host: nothing of it can still be under way on a GPU when the clock
    is read.

    Args:
        sources: the test set. Blank lines take no time and are left out; without others there is
            nothing to measure.
        sentences: how many of them, spread evenly, are translated one at a time.
    """
    lines = [line for line in sources if line.strip()]
    if not lines:
        return {}
    some = [
        lines[i] for i in np.linspace(0, len(lines) - 1, min(sentences, len(lines))).astype(int)
    ]
    seconds: dict[str, list[float]] = {name: [] for name in translators}
    first = sorted(some, key=len)[:: max(1, len(some) // WARM_UP)][:WARM_UP]  # of all lengths
    for number, line in enumerate(first + some):
        for name, translator in translators.items():
            took = wall_clock(partial(translator.translate, [line], bf16=bf16))
            if number >= len(first):
                seconds[name].append(took)
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
                "median": 1e3 * Timing(seconds[name]).median,
                "p95": 1e3 * float(np.percentile(seconds[name], 95)),
                "sentences": len(some),
            },
            "sentences_per_second": len(lines) / Timing(rounds[name]).median,
            "device": str(translator.system.device),
            "precision": "bf16" if bf16 else "fp32",
            "batch_tokens": batch_tokens,
            "decoding": translator.decoding,
            "cuda_graphs": translator.cuda_graphs,  # on a GPU, for a sentence alone, in one pass
        }
        for name, translator in translators.items()
    }


def speed_up(own: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, float]:
    """How many times faster than the baseline."""
    return {
        "latency": baseline["latency_ms"]["median"] / own["latency_ms"]["median"],
        "throughput": own["sentences_per_second"] / baseline["sentences_per_second"],
    }
