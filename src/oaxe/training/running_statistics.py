"""Statistics of training steps, added up between two lines of the log."""

from collections.abc import Hashable

import torch
from torch import Tensor

from oaxe.model.statistics import Statistics
from oaxe.training.ranks import Ranks

Totals = dict[str, tuple[float, float]]  # sum and number of each statistic


class RunningStatistics:
    """Sums that stay on the device, by phase: the phases of a system may differ in statistics."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.names: dict[Hashable, list[str]] = {}  # by phase
        self.carried: Totals = {}  # from before the run was resumed
        self._sums: dict[Hashable, Tensor] = {}  # by phase: sum, number, sum, number, ...

    def stack(self, phase: Hashable, statistics: Statistics) -> Tensor:
        """The statistics of one step as one tensor, a result that a CUDA graph can have."""
        self.names[phase] = list(statistics)
        return torch.stack([x.detach().float() for pair in statistics.values() for x in pair])

    def add(self, phase: Hashable, sums: Tensor) -> None:
        before = self._sums.get(phase)
        self._sums[phase] = sums if before is None else before + sums

    def totals(self) -> Totals:
        """The sums over all ranks since :meth:`clear`."""
        found = dict(self.carried)
        for phase, sums in self._sums.items():
            values = iter(self.ranks.add_up(sums.clone()).tolist())  # device sync
            for name, total, number in zip(self.names[phase], values, values, strict=True):
                before = found.get(name, (0.0, 0.0))
                found[name] = before[0] + total, before[1] + number
        return found

    def clear(self) -> None:
        self._sums, self.carried = {}, {}
