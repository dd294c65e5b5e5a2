"""Statistics between two lines of the log, added up by plain Python."""

import random

import torch

from oaxe.training.ranks import Ranks
from oaxe.training.running_statistics import RunningStatistics

NAMES = {"xe": ["loss"], "both": ["loss", "xe_weight", "truncated"], "loss": ["truncated", "loss"]}


def test_totals_over_phases_and_after_a_resume() -> None:
    """Phases have statistics of their own, in any order; what was carried over counts too."""
    rng, ranks = random.Random(1), Ranks(0, 1, torch.device("cpu"))
    running = RunningStatistics(ranks)
    assert running.totals() == {}
    expected: dict[str, tuple[float, float]] = {}
    for number in range(30):
        phase = rng.choice(list(NAMES))
        step = {name: (float(rng.randrange(100)), float(rng.randrange(9))) for name in NAMES[phase]}
        for name, (total, words) in step.items():
            before = expected.get(name, (0.0, 0.0))
            expected[name] = before[0] + total, before[1] + words
        tensors = {
            name: (torch.tensor(total), torch.tensor(words).long())
            for name, (total, words) in step.items()
        }
        running.add(phase, running.stack(phase, tensors).double())
        assert running.totals() == expected
        if number == 17:  # as a checkpoint does it
            carried = running.totals()
            running = RunningStatistics(ranks)
            running.carried = carried
            assert running.totals() == expected
    running.clear()
    assert running.totals() == {}
