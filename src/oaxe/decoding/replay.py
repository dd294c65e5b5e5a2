"""One sentence leaves a GPU waiting for Python: CUDA graphs start all kernels of a pass at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.model.transformer import Transformer
from oaxe.text.symbols import PAD

LEAST = 16  # places; a GPU computes these as fast as one

Tensors = tuple[Tensor, ...]


class Replays:
    """Calls functions of a model and tensors: recorded once for each shape, from then on replayed.

    What a call returns is overwritten by the next one of the same function, shapes and options.
    The weights may change in place. A model that has moved to another device needs others.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._weight = model.output_weight.detach()  # kept: none other can have its address
        self._stream: torch.cuda.Stream | None = None  # to record in
        self._pool: Any = None  # memory that all graphs share: what they return stays theirs
        self._graphs: dict[object, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensors]] = {}

    @property
    def are_valid(self) -> bool:
        return self._weight.data_ptr() == self.model.output_weight.data_ptr()

    def __call__(
        self, function: Callable[..., Tensors], *inputs: Tensor, **options: bool | int
    ) -> Tensors:
        bf16 = torch.is_autocast_enabled("cuda")
        key = function, bf16, *sorted(options.items()), *(tensor.shape for tensor in inputs)
        if key not in self._graphs:
            self._graphs[key] = self._record(function, inputs, options, bf16)
        graph, own, out = self._graphs[key]
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return out

    def _record(
        self,
        function: Callable[..., Tensors],
        inputs: Sequence[Tensor],
        options: dict[str, bool | int],
        bf16: bool,
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensors]:
        own = [tensor.clone() for tensor in inputs]
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # Weights that autocast has converted must be part of the graph, not of its cache.
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16, cache_enabled=False):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                function(self.model, *own, **options)  # libraries take their memory at first
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, self._pool, self._stream, capture_error_mode="thread_local"
            ):
                out = function(self.model, *own, **options)
        self._pool = graph.pool()
        return graph, own, out


def padded_source(source: Tensor, model: Transformer) -> Tensor:
    """``(batch, source_len)`` with a length of which there are few, see :func:`rounded`."""
    most = model.max_length + 1  # and EOS
    return F.pad(source, (0, rounded(source.shape[1], most) - source.shape[1]), value=PAD)


def rounded(length: int, most: int) -> int:
    """The next power of two, or the most: few lengths, so few graphs.

    Example:
        >>> [rounded(length, 200) for length in (3, 17, 64, 130)]
        [16, 32, 64, 200]
    """
    return min(max(LEAST, 1 << (length - 1).bit_length()), most)
