"""One sentence leaves a GPU waiting for Python: CUDA graphs start all kernels of a pass at once."""

from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from functools import partial
from threading import Lock
from typing import Any, Protocol, TypeVar

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
Kept = TypeVar("Kept")
Model = TypeVar("Model", bound=nn.Module)


class Call(Protocol):
    """Calls a function of a model and tensors; its other arguments are plain values.

    It may have a ``state``: tensors that it writes to, at the same addresses in every call.
    """

    def __call__(
        self,
        function: Callable[..., Tensors],
        model: Any,
        /,
        *inputs: Tensor,
        state: Tensors | None = None,
        **options: Hashable,
    ) -> Tensors: ...


def compute(
    function: Callable[..., Tensors],
    model: Any,
    /,
    *inputs: Tensor,
    state: Tensors | None = None,
    **options: Hashable,
) -> Tensors:
    """Just call it."""
    return function(model, *inputs, **({} if state is None else {"state": state}), **options)


class Replays:
    """A :class:`Call` of one model: recorded once for each shape, from then on replayed.

    It also calls functions of the model's parts. What a call returns is valid until the next call:
    all graphs share their memory. Weights may change in place; hooks of modules are not called.
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
        self._kept: dict[object, Any] = {}

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
        self,
        function: Callable[..., Tensors],
        model: Any,
        /,
        *inputs: Tensor,
        state: Tensors | None = None,
        **options: Hashable,
    ) -> Tensors:
        low = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        places = () if state is None else tuple(tensor.data_ptr() for tensor in state)
        shapes = [tensor.shape for tensor in inputs]
        key = function, model, low, *sorted(options.items()), *shapes, *places
        known = key in self._graphs
        if not known:
            given = options if state is None else options | {"state": state}
            self._graphs[key] = self._record(function, model, inputs, given, low)
        graph, own, out = self._graphs[key]
        if known or state is None:  # else it was done when it was recorded
            for mine, given_now in zip(own, inputs, strict=True):
                mine.copy_(given_now)
            graph.replay()
        return out

    def keep(self, name: Hashable, make: Callable[[], Kept]) -> Kept:
        """What was made under this name, in the present precision: a state has to stay there."""
        device = next(self.model.parameters()).device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if (name, low) not in self._kept:
            with torch.inference_mode(False), torch.no_grad():
                self._kept[name, low] = make()
        return self._kept[name, low]

    def in_low_precision(self, model: Model) -> Model:
        """The model itself or, under autocast, a copy whose linear layers need no conversion.

        Autocast would convert their weights at every step. The copy has the weights of now.
        """
        device = next(model.parameters()).device.type
        if not torch.is_autocast_enabled(device):
            return model
        low = torch.get_autocast_dtype(device)

        def make() -> Model:
            copy = deepcopy(model)
            for module in copy.modules():
                if isinstance(module, nn.Linear):
                    module.to(low)
            return copy

        copy = self.keep((model, "in low precision"), make)
        with torch.no_grad():
            torch._foreach_copy_(list(copy.parameters()), list(model.parameters()))
        return copy

    def _record(
        self,
        function: Callable[..., Tensors],
        model: Any,
        inputs: Sequence[Tensor],
        options: dict[str, Any],
        low: torch.dtype | None,
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensors]:
        """It is computed once, then recorded."""
        device = next(self.model.parameters()).device
        with (
            torch.cuda.device(device),
            torch.inference_mode(False),  # such tensors could not be written to outside of it
            torch.no_grad(),
            # Weights that autocast has converted must be part of the graph, not of its cache.
            torch.autocast("cuda", low, enabled=low is not None, cache_enabled=False),
        ):
            own = [tensor.clone() for tensor in inputs]
            work = partial(function, model, *own, **options)
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
