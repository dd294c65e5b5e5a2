"""Small batches leave a GPU waiting for Python: forward and backward pass as one CUDA graph.

Batches are cut from sentences in the order of their lengths, so every epoch has the same shapes
again. A batch of a new shape is computed as it always was; the second of its shape is recorded, and
from then on that shape is replayed.
"""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from oaxe.model.graphs import Recorder
from oaxe.systems import Example, Progress, System
from oaxe.training.ranks import Ranks
from oaxe.training.settings import TrainSettings

SPARE = 0.25  # of the GPU's memory; what is left of it is for graphs, each of which takes some

# Adds the gradients of an example's loss, times a scale, to the parameters' own; returns the loss
# and its statistics.
Differentiate = Callable[[Example, Progress, Tensor], tuple[Tensor, Tensor]]


def may_record(system: System, settings: TrainSettings, ranks: Ranks) -> bool:
    """Whether CUDA graphs are asked for and can be: not with DDP or checkpointing."""
    alone = ranks.device.type == "cuda" and ranks.world_size == 1
    able = system.recordable and not (settings.recompute or settings.compile)
    return settings.cuda_graphs and alone and able


class Recordings:
    """The same as what it records. Gradients stay where they are: zero them in place.

    What a call returns is valid until the next one.
    """

    def __init__(
        self,
        differentiate: Differentiate,
        parameters: Sequence[Parameter],
        warn: Callable[[str], None],
    ) -> None:
        self.differentiate, self.parameters, self.warn = differentiate, parameters, warn
        self.failed = False
        self._recorder = Recorder()
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, list[Tensor], list[Tensor]]] = {}
        self._gradients: list[Tensor | None] = []  # that the graphs write to

    def __call__(
        self, example: Example, progress: Progress, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        key = progress.phase, *(tensor.shape for tensor in example)
        if any(p.grad is not g for p, g in zip(self.parameters, self._gradients, strict=False)):
            self.forget()
        if key not in self._graphs and not self._record_if_due(key, example, progress, scale):
            return self._recorder.compute(lambda: self.differentiate(example, progress, scale))
        graph, own, (loss, stats) = self._graphs[key]
        for mine, given in zip(own, (*example, *progress[:2], scale), strict=True):
            mine.copy_(given)
        graph.replay()
        return loss, stats

    def _record_if_due(
        self, key: Hashable, example: Example, progress: Progress, scale: Tensor
    ) -> bool:
        """False if it is not recorded: not yet, for want of room, or not at all."""
        if self.failed or key not in self._seen or not has_room():
            self._seen.add(key)
            return False
        own = [tensor.clone() for tensor in (*example, *progress[:2], scale)]
        *tensors, epoch, epochs, own_scale = own
        now = Example(*tensors), Progress(epoch, epochs, progress.phase), own_scale
        try:
            graph, results = self._record(*now)
        except RuntimeError as error:
            self.failed = True
            self.forget()
            self.warn(f"CUDA graphs failed, training without them, more slowly: {error}")
            return False
        self._gradients = [parameter.grad for parameter in self.parameters]
        self._graphs[key] = graph, own, list(results)
        return True

    def forget(self) -> None:
        """Give the memory back. What comes next is computed first: its gradients must exist."""
        self._graphs.clear()
        self._recorder = Recorder()
        self._seen.clear()
        self._gradients = []

    def _record(
        self, example: Example, progress: Progress, scale: Tensor
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]:
        return self._recorder.record(lambda: self.differentiate(example, progress, scale))


def has_room() -> bool:
    """Whether the GPU has memory to spare, for batches that are larger than any so far."""
    free, all_of_it = torch.cuda.mem_get_info()
    return free > SPARE * all_of_it
