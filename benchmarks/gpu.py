"""GPU: its clock, its peak memory, and its highest measured rates."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Report
from oaxe.support.errors import UserError
from oaxe.support.timing import Timing

DEVICE = "cuda"
CALLS = 20  # between two events, or in a CUDA graph
REPLAYED = "the same, CUDA graph"


def require_gpu() -> None:
    if not torch.cuda.is_available():
        raise UserError(
            "this benchmark needs a CUDA device; on a CPU there is `python -m benchmarks losses`"
        )


def device_clock(run: Callable[[], object], calls: int = 1) -> float:
    """Seconds a call between two events of the device; host work in between counts too."""
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


def graph_of(run: Callable[[], object], calls: int) -> Callable[[], None]:
    """A replay of so many calls, without the host in between."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph.replay


def replayed(report: Report, run: Callable[[], object], repeats: int, title: str) -> Timing:
    """The time of a call that is part of a CUDA graph."""
    graph = {REPLAYED: graph_of(run, CALLS)}
    seconds = report.measure(graph, repeats, title, device_clock)[REPLAYED].seconds
    return Timing([duration / CALLS for duration in seconds])


def peak_gib(run: Callable[[], object]) -> float:
    """The most memory allocated during a call, including what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


def ceilings() -> dict[str, Any]:
    """Measured rates: operations of a large bf16 product, bytes of a large copy."""
    size = 8_192
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(2**29, device=DEVICE)
    target = torch.empty_like(source)
    for _ in range(3):
        a @ b
        target.copy_(source)
    product = Timing([device_clock(lambda: a @ b, 10) for _ in range(5)])
    copy = Timing([device_clock(lambda: target.copy_(source), 5) for _ in range(5)])
    return {
        "device": torch.cuda.get_device_name(),
        "flop_per_second": 2 * size**3 / product.median,
        "bytes_per_second": 2 * source.nbytes / copy.median,
    }
