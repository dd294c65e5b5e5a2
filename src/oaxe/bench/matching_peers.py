"""Everything installed here that solves a list of square assignment problems on the CPU."""

import importlib.util
from collections.abc import Callable
from itertools import groupby

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

Problems = list[np.ndarray]  # float32 (n, n), sorted by n
Orders = list[np.ndarray]  # column of each row


def scipy_loop(problems: Problems) -> Orders:
    """The paper's way."""
    return [linear_sum_assignment(cost)[1] for cost in problems]


def lapx(problems: Problems) -> Orders:
    import lap

    return [
        columns
        for group in same_size(problems)
        for columns in lap.lapjvr_batch(group, return_cost=False)[1]
    ]


def lapjv(problems: Problems) -> Orders:
    import lapjv

    return [lapjv.lapjv(cost)[0] for cost in problems]


def torch_linear_assignment(problems: Problems) -> Orders:
    from torch_linear_assignment import batch_linear_assignment

    return [
        columns
        for group in same_size(problems)
        for columns in batch_linear_assignment(torch.from_numpy(group)).numpy()
    ]


def same_size(problems: Problems) -> list[np.ndarray]:
    """``(count, n, n)`` for each n: batch calls of the peers take one size."""
    return [np.stack(list(group)) for _, group in groupby(problems, key=len)]


def installed_peers() -> dict[str, Callable[[Problems], Orders]]:
    modules = {
        "lap": ("lapx", lapx),
        "lapjv": ("lapjv", lapjv),
        "torch_linear_assignment": ("torch-linear-assignment", torch_linear_assignment),
    }
    found = {name: run for module, (name, run) in modules.items() if _installed(module)}
    return {"scipy loop": scipy_loop, **found}


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
