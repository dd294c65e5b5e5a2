"""Everything installed here that solves a list of square assignment problems on the CPU.

Each is given the layout that it likes best. Who measures solving alone builds that before the clock
starts; a peer's own conversion of float32, which is what models give, is part of its work.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

Problems = list[np.ndarray]  # float32 (n, n), sorted by n
Orders = list[np.ndarray]  # column of each row


@dataclass(frozen=True)
class Peer:
    arrange: Callable[[Problems], Any]  # into its layout
    solve: Callable[[Any], Orders]

    def __call__(self, problems: Problems) -> Orders:
        return self.solve(self.arrange(problems))


def scipy_loop(problems: Problems) -> Orders:
    """The paper's way."""
    return [linear_sum_assignment(cost)[1] for cost in problems]


def lapx(groups: list[np.ndarray]) -> Orders:
    import lap

    return [
        columns for group in groups for columns in lap.lapjvr_batch(group, return_cost=False)[1]
    ]


def lapjv(problems: Problems) -> Orders:
    import lapjv

    return [lapjv.lapjv(cost)[0] for cost in problems]


def torch_linear_assignment(groups: list[Tensor]) -> Orders:
    from torch_linear_assignment import batch_linear_assignment

    return [columns for group in groups for columns in batch_linear_assignment(group).numpy()]


def same_size(problems: Problems) -> list[np.ndarray]:
    """``(count, n, n)`` for each n: batch calls of the peers take one size."""
    return [np.stack(list(group)) for _, group in groupby(problems, key=len)]


def same_size_tensors(problems: Problems) -> list[Tensor]:
    return [torch.from_numpy(group) for group in same_size(problems)]


def installed_peers() -> dict[str, Peer]:
    modules = {
        "lap": ("lapx", Peer(same_size, lapx)),
        "lapjv": ("lapjv", Peer(list, lapjv)),
        "torch_linear_assignment": (
            "torch-linear-assignment",
            Peer(same_size_tensors, torch_linear_assignment),
        ),
    }
    found = {name: peer for module, (name, peer) in modules.items() if _installed(module)}
    return {"scipy loop": Peer(list, scipy_loop), **found}


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
