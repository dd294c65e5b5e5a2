"""``oaxe bench assignment``: matching on the GPU, ours and others on the same costs."""

import importlib.util
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.device import ceilings, device_clock, graph_of, require_gpu
from benchmarks.losses import costs_like_a_nat, measure, text_lengths, total_cost
from benchmarks.matching_peers import Problems, installed_peers, scipy_loop
from oaxe.losses import linear_assignment
from oaxe.support.environment import environment
from oaxe.support.timing import Timing

OURS, REPLAYED = "oaxe.linear_assignment", "the same, CUDA graph"
CALLS = 20  # between two events
DISTINCT = 500  # problems that are drawn; a batch repeats them


def run(*, repeats: int, seed: int, json_path: Path | None, console: Console) -> None:
    require_gpu()
    rng = np.random.default_rng(seed)
    result: dict[str, Any] = {"environment": environment(), "ceilings": ceilings(), "seed": seed}
    cases = {
        "4,700 of 27": [27] * 4_700,
        "real lengths": text_lengths(rng, 131_072),
        "4,700 of 100": [100] * 4_700,
        "640 of 200": [200] * 640,
        "8 of 1,000": [1_000] * 8,
    }
    for kind, draw in KINDS.items():
        for case, lengths in cases.items():
            name = f"{case}, {kind}"
            result[name] = bench_case(
                name, lengths, partial(draw, rng), repeats, result["ceilings"], console
            )
            if json_path is not None:  # after every case, so that an interruption loses little
                json_path.write_text(json.dumps(result, indent=2) + "\n")


def random_costs(rng: np.random.Generator, n: int) -> np.ndarray:
    costs: np.ndarray = rng.normal(size=(n, n)).astype(np.float32)
    return costs


# The work depends on the costs: those of a model that is vague about neighbours need twice to four
# times the scans of random ones.
KINDS = {"random costs": random_costs, "costs like a model's": costs_like_a_nat}


def bench_case(
    name: str,
    lengths: list[int],
    draw: Callable[[int], np.ndarray],
    repeats: int,
    limits: dict[str, Any],
    console: Console,
) -> dict[str, Any]:
    drawn: dict[int, list[np.ndarray]] = {}
    problems: Problems = []
    for n in lengths:
        same = drawn.setdefault(n, [])
        if len(same) < DISTINCT:
            same.append(draw(n))
        problems.append(same[len(problems) % len(same)])
    cost, mask = padded(problems)
    ours = partial(linear_assignment, cost, mask)
    on_device: dict[str, Callable[[], object]] = {OURS: ours}
    if importlib.util.find_spec("torch_linear_assignment") and len(set(lengths)) == 1:
        from torch_linear_assignment import batch_linear_assignment

        on_device["torch-linear-assignment"] = partial(batch_linear_assignment, cost)
    timings = measure(on_device, repeats, name, console, partial(device_clock, calls=CALLS))
    replay: dict[str, Callable[[], object]] = {REPLAYED: graph_of(ours, CALLS)}
    replayed = measure(replay, repeats, name, console, device_clock)[REPLAYED]
    timings[REPLAYED] = Timing([seconds / CALLS for seconds in replayed.seconds])
    host = on_the_host(cost, mask)
    timings |= measure(host, max(1, repeats // 5), name, console, device_clock)
    totals = {
        OURS: matched_total(cost, mask, ours()),
        "scipy loop": total_cost(problems, scipy_loop(problems)),
    }

    floor = sum(n * n * 4 for n in lengths) / limits["bytes_per_second"]
    table = Table(
        title=f"{name}: {len(lengths)} sentences, {sum(lengths)} tokens, longest {max(lengths)}; "
        f"reading the costs once {floor * 1e3:.3f} ms; "
        f"total {totals[OURS]:.4f}, scipy's {totals['scipy loop']:.4f}",
        title_justify="left",
    )
    table.add_column("solver", no_wrap=True)
    for header in ("batch, ms", "spread, ms", "x scipy"):
        table.add_column(header, justify="right")
    slowest = timings["scipy loop"].median
    for solver, timing in timings.items():
        ratio = f"{slowest / timing.median:,.1f}"
        table.add_row(solver, f"{timing.median * 1e3:.3f}", timing.spread, ratio)
    console.print(table)
    return {
        "sentences": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "floor_seconds": floor,
        "totals": totals,
        "seconds": {solver: timing.seconds for solver, timing in timings.items()},
    }


def padded(problems: Problems) -> tuple[Tensor, Tensor]:
    """One batch on the GPU: costs and mask."""
    lengths = torch.tensor([len(problem) for problem in problems])
    longest = int(lengths.max())
    cost = torch.zeros(len(problems), longest, longest)
    for row, problem in zip(cost, problems, strict=True):
        row[: len(problem), : len(problem)] = torch.from_numpy(problem)
    return cost.cuda(), (torch.arange(longest) < lengths.unsqueeze(1)).cuda()


def on_the_host(cost: Tensor, mask: Tensor) -> dict[str, Callable[[], object]]:
    """Costs to the host, into the layout of each, an order back: all that it takes from here."""

    def with_transfer(solve: Callable[[Problems], object]) -> object:
        lengths = mask.sum(1).tolist()
        costs = cost.cpu().numpy()
        solve([c[:n, :n] for c, n in zip(costs, lengths, strict=True)])
        return mask.long().cpu().cuda()  # as large as the answer

    def threaded(problems: Problems) -> object:
        n_threads = cpu_count() or 1
        with ThreadPoolExecutor(n_threads) as pool:
            return list(pool.map(scipy_loop, (problems[k::n_threads] for k in range(n_threads))))

    peers: dict[str, Callable[[Problems], object]] = {
        "scipy loop": scipy_loop,
        "scipy, threads": threaded,
        **installed_peers(),
    }
    return {name: partial(with_transfer, solve) for name, solve in peers.items()}


def matched_total(cost: Tensor, mask: Tensor, column: Tensor) -> float:
    matched = cost.double().gather(2, column.unsqueeze(2)).squeeze(2)
    return float(torch.where(mask, matched, 0).sum())
