"""Matching as detectors need it: a few objects choose among many queries, a picture a problem."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Annotated

import numpy as np
import torch
import typer
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks import gpu
from benchmarks.harness import Device, JsonPath, Repeats, Report, Seed, speed_up
from benchmarks.inputs import matched_cost
from benchmarks.peers import SCIPY
from oaxe.losses import assignment_backend, linear_assignment
from oaxe.support.timing import wall_clock

OURS = "oaxe.linear_assignment"
QUERIES, OBJECTS = (100, 300, 900), (5, 20, 100)
DTYPES = (torch.float32, torch.float16)

Batch = Annotated[int, typer.Option(min=1, help="Pictures that are matched at a time.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of lapx; all others have one.")]


def detection(
    batch: Batch = 64,
    device: Device = "cpu",
    threads: Threads = 1,
    repeats: Repeats = 15,
    seed: Seed = 0,
    json: JsonPath = None,
) -> None:
    """Matching of detectors: ours against a scipy loop and installed peers.

    Each takes a tensor of costs (pictures, queries, objects) on the device and leaves the object of
    every query there, -1 for none; what it needs in between is part of its time. Peers: pip install
    lapx torch-linear-assignment.
    """
    if device == "cuda":
        gpu.require_gpu()
    report = Report(json, seed=seed, batch=batch, device=device, backend=assignment_backend())
    rng = np.random.default_rng(seed)
    for queries in QUERIES:
        for objects in OBJECTS:
            cost = torch.from_numpy(costs_like_a_detector(rng, batch, queries, objects))
            for dtype in DTYPES:
                compare(report, cost.to(device, dtype), repeats, threads)


def costs_like_a_detector(
    rng: np.random.Generator, batch: int, queries: int, objects: int
) -> np.ndarray:
    """Class and L1 distance as DETR weighs them, where a third of the queries are near an object.

    Several want the same object, as in a model in training.
    """
    boxes = rng.random((batch, objects, 4))
    predicted = rng.random((batch, queries, 4))
    near = rng.integers(objects, size=(batch, queries // 3))
    drawn = np.take_along_axis(boxes, near[..., None], axis=1)
    predicted[:, : queries // 3] = drawn + rng.normal(scale=0.05, size=drawn.shape)
    distance = np.abs(predicted[:, :, None] - boxes[:, None]).sum(-1)
    probability = rng.dirichlet(np.full(8, 0.3), size=(batch, queries, objects))[..., 0]
    return (5 * distance - probability).astype(np.float32)


def compare(report: Report, cost: Tensor, repeats: int, threads: int) -> None:
    title = " x ".join(map(str, cost.shape)) + f", {str(cost.dtype).removeprefix('torch.')}"
    on_gpu = cost.is_cuda
    clock = gpu.device_clock if on_gpu else wall_clock
    contenders = {name: partial(solve, cost) for name, solve in solvers(threads).items()}
    timings = report.measure(contenders, repeats, title, clock)
    if on_gpu:
        timings[gpu.REPLAYED] = gpu.replayed(report, contenders[OURS], repeats, title)
    found = {name: solve() for name, solve in contenders.items()}
    totals = {
        name: matched_cost(cost, column >= 0, column.clamp(min=0)) for name, column in found.items()
    }
    report.add(title, timings, {"x scipy": speed_up(timings, SCIPY), "total cost": totals})


def solvers(threads: int) -> dict[str, Callable[[Tensor], Tensor]]:
    found: dict[str, Callable[[Tensor], Tensor]] = {OURS: linear_assignment, SCIPY: scipy_loop}
    if find_spec("lap") is not None:
        found["lapx"] = partial(lapx, threads=threads)
    if find_spec("torch_linear_assignment") is not None:
        found["torch-linear-assignment"] = torch_linear_assignment
    return found


def scipy_loop(cost: Tensor) -> Tensor:
    pairs = [linear_sum_assignment(picture) for picture in cost.float().cpu().numpy()]
    return scattered(cost, [rows for rows, _ in pairs], [columns for _, columns in pairs])


def lapx(cost: Tensor, threads: int) -> Tensor:
    import lap

    costs = cost.float().cpu().numpy()
    return scattered(
        cost, *lap.lapjvr_batch(costs, extend_cost=True, return_cost=False, n_threads=threads)
    )


def torch_linear_assignment(cost: Tensor) -> Tensor:
    from torch_linear_assignment import batch_linear_assignment

    return batch_linear_assignment(cost.float())


def scattered(cost: Tensor, rows: list[np.ndarray], columns: list[np.ndarray]) -> Tensor:
    """Pairs of each picture as ``(batch, queries)``, on the device of the costs."""
    column = np.full(cost.shape[:2], -1)
    np.put_along_axis(column, np.stack(rows), np.stack(columns), axis=1)
    return torch.from_numpy(column).to(cost.device)
