"""One sentence leaves a GPU waiting for Python: CUDA graphs start all kernels of a pass at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.model.transformer import Encoded, Transformer
from oaxe.text.symbols import PAD

STEP = 8  # lengths are padded to multiples of it: few graphs, hardly more work
PLACES = 256  # of a batch of sources; a larger one keeps the GPU busy without graphs


class Replay:
    """A function of tensors that is recorded once for each shape of its inputs, then replayed.

    What it returns is overwritten by the next call with the same shapes.
    """

    def __init__(self, function: Callable[..., Any], pool: Any) -> None:
        self._function, self._pool = function, pool
        self._graphs: dict[object, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        key = torch.is_autocast_enabled("cuda"), *(tensor.shape for tensor in inputs)
        if key not in self._graphs:
            self._graphs[key] = self._record(inputs)
        graph, own, out = self._graphs[key]
        for mine, given in zip(own, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return out

    def _record(self, inputs: Sequence[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        own = [tensor.clone() for tensor in inputs]
        bf16 = torch.is_autocast_enabled("cuda")
        # Weights that autocast has converted must be part of the graph, not of its cache.
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16, cache_enabled=False):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._function(*own)  # libraries take their memory at the first call
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                out = self._function(*own)
        return graph, own, out


class ReplayedTransformer:
    """A model for short input on a GPU: its encoder and decoder are replayed.

    It reads the model's weights where they were when it was made. They may change in place.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        pool = torch.cuda.graph_pool_handle() if model.output_weight.is_cuda else None
        self._encode = Replay(lambda source: tuple(model.encode(source)), pool)
        self._decode = Replay(
            lambda inputs, mask, hidden, seen: model.decode(
                inputs, mask, Encoded(hidden, seen, None)
            ),
            pool,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, source: Tensor) -> Encoded:
        own = 0 if self._model.length is None else 1  # LENGTH comes in front
        most = self._model.source_positions.num_embeddings - own
        return Encoded(*self._encode(padded(source, PAD, most)))

    def decode(self, inputs: Tensor, mask: Tensor, encoded: Encoded) -> Tensor:
        most = self._model.target_positions.num_embeddings
        hidden: Tensor = self._decode(
            padded(inputs, PAD, most), padded(mask, False, most), encoded.hidden, encoded.mask
        )
        return hidden[:, : inputs.shape[1]]


def padded(rows: Tensor, value: float, most: int) -> Tensor:
    """``(rows, length)`` with a length that is a multiple of :data:`STEP`, or ``most``.

    Example:
        >>> padded(torch.ones(1, 3, dtype=torch.int64), 0, most=100)
        tensor([[1, 1, 1, 0, 0, 0, 0, 0]])
    """
    length = min(-(-rows.shape[1] // STEP) * STEP, most)
    return F.pad(rows, (0, length - rows.shape[1]), value=value)
