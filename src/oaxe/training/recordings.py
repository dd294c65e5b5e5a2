"""Updates as CUDA graphs: small ones would leave a GPU waiting for Python.

Work is computed as usual the first time, recorded the second time, and replayed from then on. Only
the values of tensors may differ from one time to the next: other shapes are other work.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from oaxe.model.graphs import Recorder
from oaxe.systems import System
from oaxe.training.ranks import Ranks
from oaxe.training.settings import TrainSettings

SPARE = 0.25  # of the GPU's memory; what is left of it is for graphs, each of which takes some

Tensors = tuple[Tensor, ...]
Work = Callable[..., Tensors]  # of tensors; what else it changes stays where it is


def may_record(system: System, settings: TrainSettings, ranks: Ranks) -> bool:
    """Whether CUDA graphs are asked for and can be: not where layers are compiled or recomputed."""
    able = system.recordable and not (settings.recompute or settings.compile)
    return settings.cuda_graphs and ranks.device.type == "cuda" and able


class Recordings:
    """Calls work as CUDA graphs; a result is valid until the next call."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.failed = False
        self._recorder = Recorder()
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensors, Tensors]] = {}

    def __call__(self, name: Hashable, work: Work, *inputs: Tensor) -> Tensors:
        """``work(*inputs)``; work of the same name and shapes must be the same."""
        key = name, *(tensor.shape for tensor in inputs)
        if key not in self._graphs and not self._record_if_due(key, work, inputs):
            return self._recorder.compute(lambda: work(*inputs))
        graph, own, results = self._graphs[key]
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return results

    def _record_if_due(self, key: Hashable, work: Work, inputs: Tensors) -> bool:
        """False if it is not recorded: not yet, for want of room, or not at all."""
        if self.failed or key not in self._seen or not has_room():
            self._seen.add(key)
            return False
        own = tuple(tensor.clone() for tensor in inputs)
        try:
            graph, results = self._record(lambda: work(*own))
        except RuntimeError as error:
            self.failed = True
            self.forget()
            self.warn(f"CUDA graphs failed, training without them, more slowly: {error}")
            return False
        self._graphs[key] = graph, own, results
        return True

    def forget(self) -> None:
        """Give the memory back."""
        self._graphs.clear()
        self._recorder = Recorder()
        self._seen.clear()

    def _record(self, work: Callable[[], Tensors]) -> tuple[torch.cuda.CUDAGraph, Tensors]:
        return self._recorder.record(work)


def has_room() -> bool:
    """Whether the GPU has memory to spare, for batches that are larger than any so far."""
    free, all_of_it = torch.cuda.mem_get_info()
    return free > SPARE * all_of_it
