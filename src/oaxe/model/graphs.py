"""Work for a GPU, recorded as CUDA graphs: all of its kernels start at once, without Python."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class Recorder:
    """Graphs that share their memory: replay one at a time, and use what it computed before more.

    Results are where they were when the graph was recorded, and so must inputs and weights be.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None  # PyTorch's own cannot be recorded
        self._pool: Any = None

    def compute(self, work: Callable[[], Result]) -> Result:
        """Do it now, as it must have been done once before it is recorded.

        Kernels are compiled then, and libraries take the memory that they keep.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        before = torch.cuda.current_stream()
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            result = work()
        before.wait_stream(self._stream)
        return result

    def record(self, work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """A graph of what the work starts on the GPU, and where its results will be.

        Raises:
            RuntimeError: it cannot be recorded; it can still be computed.
        """
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random = generator.get_state()
        try:
            # Other threads, such as those that load data, may use the device meanwhile; they may
            # not wait for all of it.
            with (
                no_garbage_collection(),
                torch.cuda.graph(
                    graph, self._pool, self._stream, capture_error_mode="thread_local"
                ),
            ):
                result = work()
        except BaseException:
            # PyTorch's random numbers would go on as if they were recorded: a new state for them.
            fresh = torch.Generator(generator.device)
            fresh.set_state(random)
            generator.graphsafe_set_state(fresh.graphsafe_get_state())
            raise
        finally:
            torch.cuda.set_stream(before)  # a recording that fails may not do so
        self._pool = graph.pool()
        return graph, result


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Unused graphs must not be freed while another is recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
