"""One sentence leaves a GPU waiting for Python: CUDA graphs start all kernels of a pass at once."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oaxe.model.graphs import Recorder
from oaxe.text.symbols import PAD

LEAST = 16  # positions; a GPU computes these as fast as one
# To be held from the first call to the use of what the last one returned: only one graph can be
# recorded at a time, and threads that share a model would write over each other's sentences.
REPLAYING = Lock()

Tensors = tuple[Tensor, ...]


class Call(Protocol):
    """Calls a function of a model and tensors; its other arguments are plain values."""

    def __call__(
        self, function: Callable[..., Tensors], model: Any, /, *inputs: Tensor, **options: float
    ) -> Tensors: ...


def compute(
    function: Callable[..., Tensors], model: Any, /, *inputs: Tensor, **options: float
) -> Tensors:
    """Just call it."""
    return function(model, *inputs, **options)


class Replays:
    """A :class:`Call` of one model: recorded once for each shape, from then on replayed.

    What a call returns is valid until the next call: all graphs share their memory. Weights may
    change in place; hooks of modules are not called.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._children = [(of, of.copy()) for m in model.modules() if (of := m._modules)]
        # Weights are kept, so that no others can have their addresses.
        self._weights = [
            (module._parameters, name, weight.detach())
            for module in model.modules()
            for name, weight in module._parameters.items()
            if weight is not None
        ]
        self._recorder = Recorder()
        self._graphs: dict[object, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensors]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.model,)  # a copy records its own

    def are_of(self, model: nn.Module) -> bool:
        """Whether this is the model, with the same modules, and weights where they were."""
        return (
            model is self.model
            and all(now == known for now, known in self._children)
            and all(
                (weight := of.get(name)) is not None and weight.data_ptr() == known.data_ptr()
                for of, name, known in self._weights
            )
        )

    def __call__(
        self, function: Callable[..., Tensors], model: Any, /, *inputs: Tensor, **options: float
    ) -> Tensors:
        low = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        key = function, low, *sorted(options.items()), *(tensor.shape for tensor in inputs)
        if key not in self._graphs:
            self._graphs[key] = self._record(function, inputs, options, low)
        graph, own, out = self._graphs[key]
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return out

    def _record(
        self,
        function: Callable[..., Tensors],
        inputs: Sequence[Tensor],
        options: dict[str, float],
        low: torch.dtype | None,
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensors]:
        with (
            torch.cuda.device(inputs[0].device),
            torch.inference_mode(False),  # such tensors could not be written to outside of it
            torch.no_grad(),
            # Weights that autocast has converted must be part of the graph, not of its cache.
            torch.autocast("cuda", low, enabled=low is not None, cache_enabled=False),
        ):
            own = [tensor.clone() for tensor in inputs]
            work = partial(function, self.model, *own, **options)
            self._recorder.compute(work)
            graph, out = self._recorder.record(work)
        return graph, own, out


def padded_source(source: Tensor, max_length: int) -> Tensor:
    """``(batch, source_len)`` with a length of which there are few, see :func:`rounded`."""
    most = max_length + 1  # and EOS
    return F.pad(source, (0, rounded(source.shape[1], most) - source.shape[1]), value=PAD)


def rounded(length: int, most: int) -> int:
    """The next power of two, but no more than the most: few lengths, so few graphs.

    Example:
        >>> [rounded(length, 200) for length in (3, 17, 64, 130)]
        [16, 32, 64, 200]
    """
    return max(length, min(most, max(LEAST, 1 << (length - 1).bit_length())))
