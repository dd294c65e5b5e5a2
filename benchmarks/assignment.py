"""GPU: matching, ours and others on the same costs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from os import cpu_count

import numpy as np
from torch import Tensor

from benchmarks import gpu
from benchmarks.harness import JsonPath, Repeats, Report, Seed, speed_up
from benchmarks.inputs import (
    Problems,
    costs_like_a_nat,
    matched_cost,
    padded,
    random_costs,
    text_lengths,
)
from benchmarks.peers import SCIPY, installed_peers, scipy_loop, total_cost
from oaxe.losses import linear_assignment

OURS = "oaxe.linear_assignment"
DISTINCT = 500  # problems that are drawn; a batch repeats them
# The work depends on the costs: those of a model that is vague about neighbours need twice to four
# times the scans of random ones.
KINDS = {"random costs": random_costs, "costs like a model's": costs_like_a_nat}


def assignment(repeats: Repeats = 15, seed: Seed = 0, json: JsonPath = None) -> None:
    """GPU: matching, ours against a scipy loop and installed peers.

    Peers: pip install lapx lapjv torch-linear-assignment.
    """
    gpu.require_gpu()
    limits = gpu.ceilings()
    report = Report(json, seed=seed, **limits)
    rng = np.random.default_rng(seed)
    cases = {
        "4,700 of 27": [27] * 4_700,
        "real lengths": text_lengths(rng, 131_072),
        "4,700 of 100": [100] * 4_700,
        "640 of 200": [200] * 640,
        "8 of 1,000": [1_000] * 8,
    }
    for kind, draw in KINDS.items():
        for case, lengths in cases.items():
            problems = draw_problems(lengths, partial(draw, rng))
            compare(report, f"{case}, {kind}", problems, repeats, limits["bytes_per_second"])


def draw_problems(lengths: list[int], draw: Callable[[int], np.ndarray]) -> Problems:
    drawn: dict[int, Problems] = {}
    problems: Problems = []
    for n in lengths:
        same = drawn.setdefault(n, [])
        if len(same) < DISTINCT:
            same.append(draw(n))
        problems.append(same[len(problems) % len(same)])
    return problems


def compare(
    report: Report, title: str, problems: Problems, repeats: int, bytes_per_second: float
) -> None:
    cost, mask = (tensor.to(gpu.DEVICE) for tensor in padded(problems))
    ours = partial(linear_assignment, cost, mask)
    on_device: dict[str, Callable[[], object]] = {OURS: ours}
    if find_spec("torch_linear_assignment") and bool(mask.all()):  # it takes one size
        from torch_linear_assignment import batch_linear_assignment

        on_device["torch-linear-assignment"] = partial(batch_linear_assignment, cost)
    clock = partial(gpu.device_clock, calls=gpu.CALLS)
    timings = report.measure(on_device, repeats, title, clock)
    timings[gpu.REPLAYED] = gpu.replayed(report, ours, repeats, title)
    host = on_the_host(cost, mask)
    timings |= report.measure(host, max(1, repeats // 5), title, gpu.device_clock)
    totals = {
        OURS: matched_cost(cost, mask, ours()),
        SCIPY: total_cost(problems, scipy_loop(problems)),
    }
    report.add(
        title,
        timings,
        {"x scipy": speed_up(timings, SCIPY), "total cost": totals},
        sentences=len(problems),
        tokens=sum(map(len, problems)),
        longest=max(map(len, problems)),
        ms_to_read_costs=sum(problem.nbytes for problem in problems) / bytes_per_second * 1e3,
    )


def on_the_host(cost: Tensor, mask: Tensor) -> dict[str, Callable[[], object]]:
    """Costs to the host, into the layout of each solver, an order back to the GPU."""

    def with_transfer(solve: Callable[[Problems], object]) -> object:
        lengths = mask.sum(1).tolist()
        costs = cost.cpu().numpy()
        solve([c[:n, :n] for c, n in zip(costs, lengths, strict=True)])
        return mask.long().cpu().to(gpu.DEVICE)  # as large as the answer

    def threaded(problems: Problems) -> object:
        n_threads = cpu_count() or 1
        with ThreadPoolExecutor(n_threads) as pool:
            return list(pool.map(scipy_loop, (problems[k::n_threads] for k in range(n_threads))))

    solvers: dict[str, Callable[[Problems], object]] = {
        "scipy, threads": threaded,
        **installed_peers(),
    }
    return {name: partial(with_transfer, solve) for name, solve in solvers.items()}
