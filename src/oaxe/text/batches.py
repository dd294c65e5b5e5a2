"""A corpus goes in, batches come out: planned (:mod:`oaxe.text.plans`), resumable."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oaxe.support.errors import UserError
from oaxe.text.corpus import Corpus, Sentences
from oaxe.text.plans import (
    Indices,
    Limits,
    Room,
    Shape,
    plan_bands,
    plan_epoch,
    plan_packed,
    shape_of,
)
from oaxe.text.symbols import EOS, PAD

AHEAD = 2  # updates that are kept ready


@dataclass(frozen=True)
class Batch:
    source: Tensor  # (batch, source_len) int64, EOS after each sentence, then PAD
    target: Tensor  # (batch, target_len) int64, tokens only, then PAD
    indices: Tensor  # (sentences,) positions in the corpus; a packed batch may have empty rows
    n_target_tokens: int  # without padding
    room: Room | None = None  # of a packed batch; EOS of the source included

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        return self._with(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        source, target, indices = map(change, (self.source, self.target, self.indices))
        return Batch(source, target, indices, self.n_target_tokens, self.room)


class Update(NamedTuple):
    epoch: int
    number: int  # of the update in its epoch, from 0
    n_updates: int  # in the epoch
    batches: list[Batch]  # of this rank; none where an update has fewer sentences than ranks
    n_target_tokens: int  # of the update over all ranks


def collate(corpus: Corpus, indices: Indices, shape: Shape | None = None) -> Batch:
    """The sentences at ``indices`` as padded tensors, of a shape or as small as possible."""
    source = pad(corpus.sources, indices, extra=1)
    source[np.arange(len(indices)), corpus.source_lengths[indices]] = EOS
    target = pad(corpus.targets, indices)
    if shape is not None:
        source, target = (
            np.pad(ids, [(0, shape.rows - len(ids)), (0, places - ids.shape[1])])  # PAD is 0
            for ids, places in ((source, shape.source), (target, shape.target))
        )
    return Batch(
        source=torch.from_numpy(source),
        target=torch.from_numpy(target),
        indices=torch.from_numpy(np.ascontiguousarray(indices)),
        n_target_tokens=int(corpus.target_lengths[indices].sum()),
        room=None if shape is None else shape.room,
    )


def pad(sentences: Sentences, indices: Indices, extra: int = 0) -> NDArray[np.int64]:
    """``(batch, longest + extra)`` token ids, padded on the right."""
    lengths = sentences.lengths[indices]
    column = np.arange(lengths.max(initial=0) + extra)
    real = column < lengths[:, None]  # (batch, longest + extra)
    where = sentences.offsets[indices][:, None] + column
    padded = np.full(real.shape, PAD)
    padded[real] = sentences.tokens[where[real]]
    return padded


class UpdateLoader:
    """Updates without end, epoch after epoch, collated ahead by a thread.

    Starting at any update gives exactly what an uninterrupted iteration gives from there. Use it as
    a context manager, or call :meth:`close`.

    Args:
        limits: with the epoch to start in.
        start: number of the update to start at, in that epoch.
        device: where the batches go; for CUDA through pinned memory, without waiting.
        mix_lengths: see :func:`plan_epoch`.
        packed: whether the batches are to be computed without their padding.
        in_bands: whether packed batches are of similar lengths, see :func:`plan_bands`.
    """

    def __init__(
        self,
        corpus: Corpus,
        limits: Limits,
        start: int = 0,
        *,
        rank: int = 0,
        device: torch.device | str = "cpu",
        mix_lengths: bool = False,
        packed: bool = False,
        in_bands: bool = False,
    ) -> None:
        if not 0 <= rank < limits.world_size:
            raise UserError(f"rank {rank} is not in 0..{limits.world_size - 1}")
        if len(corpus) == 0:
            raise UserError("the corpus is empty: there is nothing to iterate over")
        self._corpus, self._limits, self._rank = corpus, limits, rank
        self._mix_lengths, self._packed, self._in_bands = mix_lengths, packed, in_bands
        self._device = torch.device(device)
        self._updates = self._iterate(limits.epoch, start)
        self._thread = ThreadPoolExecutor(1, "batches")
        if self._device.type == "cuda":
            if self._device.index is None:
                self._device = torch.device("cuda", torch.cuda.current_device())
            self._thread.submit(torch.cuda.set_device, self._device)
        self._ready: deque[Future[Update]] = deque()
        for _ in range(AHEAD):
            self._prepare_next()

    def __iter__(self) -> "UpdateLoader":
        return self

    def __next__(self) -> Update:
        if not self._ready:
            raise StopIteration
        try:
            update = self._ready.popleft().result()
        except BaseException:
            self.close()
            raise
        self._prepare_next()
        # Copied here, not in the thread: copies then follow the stream of the consumer.
        batches = [batch.to(self._device, non_blocking=True) for batch in update.batches]
        return update._replace(batches=batches)

    def __enter__(self) -> "UpdateLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread; the updates that are ready are lost."""
        self._ready.clear()
        self._thread.shutdown(cancel_futures=True)

    def _prepare_next(self) -> None:
        self._ready.append(self._thread.submit(next, self._updates))

    def _planned(self, epoch: int) -> tuple[list[list[Indices]], Sequence[Sequence[Shape | None]]]:
        """The batches of an epoch and their shapes; None where they are padded."""
        lengths = self._corpus.source_lengths, self._corpus.target_lengths
        limits = replace(self._limits, epoch=epoch)
        if self._packed and self._in_bands:
            return plan_bands(*lengths, limits)
        if self._packed:
            plan = plan_packed(*lengths, limits)
            shape: Shape | None = shape_of(plan, *lengths)
        else:
            plan = plan_epoch(*lengths, limits, mix_lengths=self._mix_lengths)
            shape = None
        return plan, [[shape] * len(update) for update in plan]

    def _iterate(self, epoch: int, first: int) -> Iterator[Update]:
        while True:
            plan, shapes = self._planned(epoch)
            if first > len(plan):
                raise UserError(f"update {first} of epoch {epoch}: it has only {len(plan)} updates")
            for number, update in enumerate(plan[first:], first):
                tokens = int(self._corpus.target_lengths[np.concatenate(update)].sum())
                mine = slice(self._rank, None, self._limits.world_size)
                batches = [
                    collate(self._corpus, indices, shape)
                    for indices, shape in zip(update[mine], shapes[number][mine], strict=True)
                ]
                if self._device.type == "cuda":
                    batches = [batch.pin_memory() for batch in batches]
                yield Update(epoch, number, len(plan), batches, tokens)
            epoch, first = epoch + 1, 0
