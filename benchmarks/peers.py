"""Installed libraries that solve a list of square assignment problems on the CPU.

Each gets the layout that it likes best, built before the clock starts where solving alone is
measured. A library's own conversion of float32, which models give, is part of its time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from benchmarks.inputs import Problems

SCIPY = "scipy loop"
Orders = list[np.ndarray]  # column of each row


@dataclass(frozen=True)
class Peer:
    arrange: Callable[[Problems], Any]  # into its layout
    solve: Callable[[Any], Orders]

    def __call__(self, problems: Problems) -> Orders:
        return self.solve(self.arrange(problems))


def scipy_loop(problems: Problems) -> Orders:
    """As in the paper's code: a loop over sentences."""
    return [linear_sum_assignment(cost)[1] for cost in problems]


def lapx(groups: list[np.ndarray]) -> Orders:
    import lap

    return [order for group in groups for order in lap.lapjvr_batch(group, return_cost=False)[1]]


def lapjv(problems: Problems) -> Orders:
    import lapjv

    return [lapjv.lapjv(cost)[0] for cost in problems]


def torch_linear_assignment(groups: list[np.ndarray]) -> Orders:
    from torch_linear_assignment import batch_linear_assignment

    solved = (batch_linear_assignment(torch.from_numpy(group)) for group in groups)
    return [order for group in solved for order in group.numpy()]


def same_size(problems: Problems) -> list[np.ndarray]:
    """``(count, n, n)`` for each n: batch calls of the peers take one size."""
    return [np.stack(list(group)) for _, group in groupby(problems, key=len)]


def installed_peers() -> dict[str, Peer]:
    torch_peer = Peer(same_size, torch_linear_assignment)
    modules = {
        "scipy": (SCIPY, Peer(list, scipy_loop)),
        "lap": ("lapx", Peer(same_size, lapx)),
        "lapjv": ("lapjv", Peer(list, lapjv)),
        "torch_linear_assignment": ("torch-linear-assignment", torch_peer),
    }
    return dict(named for module, named in modules.items() if find_spec(module) is not None)


def total_cost(problems: Problems, orders: Orders) -> float:
    return sum(
        float(cost[np.arange(len(cost)), order].astype(np.float64).sum())
        for cost, order in zip(problems, orders, strict=True)
    )
