"""A corpus goes in, padded batches come out: planned for an epoch, collated ahead, resumable.

An update is what the optimiser steps on: a fixed number of target tokens over all ranks. It is cut
into micro-batches that fit into memory. The seed and the epoch alone decide which sentences form an
update; the number of ranks changes only the cuts.

Padded batches hold sentences of similar lengths. Packed ones hold sentences of all lengths, and are
all alike: a model that leaves out the padding computes one shape, and nothing for no word. Some
systems compare all positions of a sentence, which cannot be packed: for these, the corpus is cut
into bands of similar lengths, and the packed batches of a band are alike.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oaxe.support.errors import UserError
from oaxe.text.corpus import Corpus, Sentences
from oaxe.text.symbols import EOS, PAD

Indices = NDArray[np.int64]
ROUNDED = 256  # room is a multiple: the same in all epochs, and whole tiles of matrix products
BANDS = 16  # of similar lengths, at most: each is one more shape
OVERFULL = 1.1  # a packed batch may have so many times max_tokens rather than be cut in two


class Room(NamedTuple):
    """The most tokens on either side of a packed batch; its rows have more places than that."""

    source: int
    target: int
    words: int = 0  # of the targets, EOS included, for systems that ask for it


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


class Shape(NamedTuple):
    """What all packed batches of an epoch, or of a band, have in common."""

    rows: int
    source: int  # places of a row
    target: int
    room: Room


def collate(corpus: Corpus, indices: Indices, shape: Shape | None = None) -> Batch:
    """The sentences at ``indices`` as padded tensors, as small as they can be or of a shape."""
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


def cut(
    source_lengths: NDArray[Any],
    target_lengths: NDArray[Any],
    order: Indices,
    max_tokens: int,
    max_target_tokens: int | None = None,
) -> list[Indices]:
    """Cut ``order`` into batches of as many consecutive sentences as fit.

    The padded size (sentences times the longest of them) of either side stays within
    ``max_tokens``, the EOS of the source included; that of the target also within
    ``max_target_tokens``, but for a single sentence.
    """
    widths = np.stack([source_lengths[order] + 1, np.maximum(target_lengths[order], 1)])  # (2, n)
    limits = np.array([[max_tokens], [min(max_tokens, max_target_tokens or max_tokens)]])
    if widths.size and (longest := widths.max()) > max_tokens:
        raise UserError(
            f"a sentence of {longest} tokens (EOS included) does not fit into a batch of "
            f"{max_tokens}; raise data.batch_tokens (in Python, max_tokens), or prepare the data "
            "with a lower --max-length"
        )
    batches = []
    start = 0
    while start < len(order):
        # The first sentence bounds the number that can follow: no need to look further.
        most = int((limits // widths[:, start : start + 1]).min())
        longest_so_far = np.maximum.accumulate(widths[:, start : start + most], axis=1)
        sizes = longest_so_far * np.arange(1, longest_so_far.shape[1] + 1)
        fits = int((sizes <= limits).all(axis=0).sum())  # sizes only grow
        batches.append(order[start : start + max(fits, 1)])
        start += max(fits, 1)
    return batches


def plan_epoch(
    source_lengths: NDArray[Any],
    target_lengths: NDArray[Any],
    *,
    max_tokens: int,
    update_tokens: int,
    seed: int,
    epoch: int,
    world_size: int = 1,
    mix_lengths: bool = False,
) -> list[list[Indices]]:
    """The updates of an epoch, each a list of micro-batches; every sentence exactly once.

    Sentences of similar length share a micro-batch; which ones, and the order of the micro-batches,
    is random. All updates have about the same number of target tokens (padding not counted),
    ``update_tokens`` to within half a micro-batch and the rounding of the epoch to whole updates.
    Rank r of w takes the micro-batches r, r + w, r + 2w, ... of an update: their number is a
    multiple of w wherever there are enough sentences, largest first.

    Args:
        source_lengths: ``(sentences,)``, without special symbols; also ``target_lengths``.
        max_tokens: limit on the padded size of each side of a micro-batch, EOS included.
        update_tokens: target tokens of an update.
        seed: with ``epoch``, all that randomness depends on.
        mix_lengths: let sentences of any lengths share a micro-batch, of up to ``max_tokens``
            whatever ``update_tokens`` is. That costs padding, and helps where an update has few
            micro-batches and what is learned depends on the length.
    """
    _check_limits(max_tokens, update_tokens, world_size)
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(source_lengths))
    if not mix_lengths:
        order = _by_length(order, source_lengths, target_lengths)
    at_most = None if mix_lengths else update_tokens
    batches = cut(source_lengths, target_lengths, order, max_tokens, at_most)
    batches = [batches[i] for i in rng.permutation(len(batches))]
    tokens = np.array([target_lengths[batch].sum() for batch in batches])
    ends = np.cumsum(tokens)
    total = int(ends[-1]) if len(ends) else 0
    n_updates = max(1, round(total / update_tokens))
    # A batch belongs to the update that holds its middle, on a line of all tokens of the epoch.
    update = ((ends - tokens / 2) * n_updates / max(total, 1)).astype(np.int64)
    groups = np.split(np.arange(len(batches)), np.flatnonzero(np.diff(update)) + 1)
    return [share([batches[i] for i in group], world_size) for group in groups if len(group)]


def share(batches: list[Indices], world_size: int) -> list[Indices]:
    """Halve the batches with most sentences until the ranks can have equally many."""
    batches = sorted(batches, key=len, reverse=True)
    while len(batches) % world_size and len(batches[0]) > 1:
        half = (len(batches[0]) + 1) // 2
        batches = sorted([batches[0][:half], batches[0][half:], *batches[1:]], key=len)[::-1]
    return batches


def plan_packed(
    source_lengths: NDArray[Any],
    target_lengths: NDArray[Any],
    *,
    max_tokens: int,
    update_tokens: int,
    seed: int,
    epoch: int,
    world_size: int = 1,
) -> list[list[Indices]]:
    """The same for packed micro-batches, each a sample of the whole corpus.

    In the order of their lengths, sentences are dealt out to the updates, and those of an update to
    its micro-batches. So all of these have the same number of sentences, but for one, and about the
    same number of tokens; of the target they differ by no more than the longest sentence has.

    Args:
        max_tokens: of each side of a micro-batch, about; there is no padding.
        Others: as for :func:`plan_epoch`.
    """
    _check_limits(max_tokens, update_tokens, world_size)
    if not len(source_lengths):
        return []
    rng = np.random.default_rng([seed, epoch])
    order = _by_length(rng.permutation(len(source_lengths)), source_lengths, target_lengths)
    n_updates = max(1, round(int(target_lengths.sum()) / update_tokens))
    updates = _deal(order, min(n_updates, len(order)), rng)
    tokens = max(int((source_lengths + 1).sum()), int(target_lengths.sum())) / len(updates)
    n_batches = world_size * math.ceil(tokens / (OVERFULL * max_tokens * world_size))
    return [[b for b in _deal(update, n_batches, rng) if len(b)] for update in updates]


def plan_bands(
    source_lengths: NDArray[Any],
    target_lengths: NDArray[Any],
    *,
    max_tokens: int,
    update_tokens: int,
    seed: int,
    epoch: int,
    world_size: int = 1,
) -> tuple[list[list[Indices]], list[list[Shape]]]:
    """The same for packed micro-batches of similar lengths; and the shape of each of them.

    In the order of their lengths, of the source above all, sentences are cut into bands, and those
    of a band are dealt out to its micro-batches, which have one shape. Which of them form an update
    is random. Each has about the same number of target tokens, whatever its band.

    Args:
        As for :func:`plan_packed`.
    """
    _check_limits(max_tokens, update_tokens, world_size)
    if not len(source_lengths):
        return [], []
    rng = np.random.default_rng([seed, epoch])
    order = _by_length(rng.permutation(len(source_lengths)), target_lengths, source_lengths)
    n_updates = min(max(1, round(int(target_lengths.sum()) / update_tokens)), len(order))
    tokens = max(int((source_lengths + 1).sum()), int(target_lengths.sum())) / n_updates
    size = math.ceil(tokens / (OVERFULL * max_tokens))  # batches of an update
    bands = _bands(order, source_lengths, target_lengths, size * n_updates)
    dealt = [
        (batch, band)
        for band, (sentences, n_batches) in enumerate(bands)
        for batch in _deal(sentences, n_batches, rng)
    ]
    dealt = [dealt[i] for i in rng.permutation(len(dealt))]
    # Only now, so that the number of ranks changes nothing else: the ranks have equally many.
    parts = world_size // math.gcd(size, world_size)
    cut_up = [([b for b in _deal(batch, parts, rng) if len(b)], band) for batch, band in dealt]
    of_bands = [[batches for batches, its in cut_up if its == n] for n in range(len(bands))]
    shapes = [shape_of(band, source_lengths, target_lengths) for band in of_bands]
    plan: list[list[Indices]] = []
    of_plan: list[list[Shape]] = []
    for start in range(0, len(cut_up), size):
        update = cut_up[start : start + size]
        plan.append([batch for batches, _ in update for batch in batches])
        of_plan.append([shapes[band] for batches, band in update for _ in batches])
    return plan, of_plan


def _bands(
    order: Indices, source_lengths: NDArray[Any], target_lengths: NDArray[Any], n_batches: int
) -> list[tuple[Indices, int]]:
    """The sentences and the number of batches of at most BANDS bands.

    So many batches of consecutive sentences have as many target tokens each; those that share a
    band, as wide as the widest of them, are chosen such that the squares of all rows are least.
    """
    done = target_lengths[order].cumsum()
    ends = np.searchsorted(done * n_batches, done[-1] * np.arange(1, n_batches), side="right")
    ends = np.unique(np.append(ends, len(order)))  # a long sentence may fill several batches
    ends = ends[ends > 0]
    widths = source_lengths[order[ends - 1]] + 1
    last = np.append(np.flatnonzero(np.diff(widths)), len(ends) - 1)  # batch of each width
    squares = np.append(0, widths[last] ** 2.0)
    rows = np.append(0, ends[last])
    areas = squares * (rows - rows[:, None])  # of a band from one width to another; none: 0
    areas[np.tril_indices(len(rows), -1)] = np.inf
    best, origins = areas[0], []
    for _ in range(BANDS - 1):
        ways = best[:, None] + areas
        best = ways.min(0)
        origins.append(ways.argmin(0))
    cuts, at = {len(rows) - 1}, len(rows) - 1
    for origin in reversed(origins):
        at = int(origin[at])
        cuts.add(at)
    chosen = sorted(cuts - {0})
    counts = np.diff(np.append(0, last + 1)[[0, *chosen]])
    sentences = np.split(order, rows[chosen][:-1])
    return [(some, int(n)) for some, n in zip(sentences, counts, strict=True)]


def shape_of(
    plan: list[list[Indices]], source_lengths: NDArray[Any], target_lengths: NDArray[Any]
) -> Shape:
    """One that all micro-batches of a packed plan fit into."""
    batches = [batch for update in plan for batch in update]
    most = (
        max(int(lengths[batch].sum()) for batch in batches)
        for lengths in (source_lengths + 1, target_lengths)
    )
    return Shape(
        rows=max(map(len, batches)),
        source=max(int(source_lengths[batch].max()) for batch in batches) + 1,
        target=max(1, *(int(target_lengths[batch].max()) for batch in batches)),
        room=Room(*(math.ceil(tokens / ROUNDED) * ROUNDED for tokens in most)),
    )


def _deal(order: Indices, hands: int, rng: np.random.Generator) -> list[Indices]:
    """As cards: one to each of the hands in random order, then again, until there are none.

    The first round, of the shortest sentences, may be too small for all hands.
    """
    rounds = np.full(math.ceil(len(order) / hands) * hands, -1)
    rounds[len(rounds) - len(order) :] = order
    dealt = rng.permuted(rounds.reshape(-1, hands), axis=1)
    return [hand[hand >= 0] for hand in np.ascontiguousarray(dealt.T)]


def _by_length(
    order: Indices, source_lengths: NDArray[Any], target_lengths: NDArray[Any]
) -> Indices:
    """Sorted by target, then by source length."""
    for lengths in (source_lengths, target_lengths):
        # Stable on 16 bits is a radix sort: 20 million pairs are planned in 6 s, not 11.
        keys = np.minimum(lengths[order], 65_535).astype(np.uint16)
        order = order[np.argsort(keys, kind="stable")]
    return order


def _check_limits(max_tokens: int, update_tokens: int, world_size: int) -> None:
    if min(max_tokens, update_tokens, world_size) < 1:
        raise UserError(
            "max_tokens, update_tokens and world_size must be 1 or more; "
            f"got {max_tokens}, {update_tokens} and {world_size}"
        )


class UpdateLoader:
    """Updates without end, epoch after epoch, collated ahead by a thread.

    Starting at ``(start_epoch, start_update)`` gives exactly what an uninterrupted iteration gives
    from there. Use it as a context manager, or call :meth:`close`.

    Args:
        device: where the batches go; for CUDA through pinned memory, without waiting.
        prefetch: updates that are kept ready.
        packed: whether the batches are to be computed without their padding.
        in_bands: whether packed batches are of similar lengths, see :func:`plan_bands`.
        Others: as for :func:`plan_epoch`.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        max_tokens: int,
        update_tokens: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        start_epoch: int = 0,
        start_update: int = 0,
        mix_lengths: bool = False,
        packed: bool = False,
        in_bands: bool = False,
        prefetch: int = 2,
    ) -> None:
        if not 0 <= rank < world_size:
            raise UserError(f"rank {rank} is not in 0..{world_size - 1}")
        if len(corpus) == 0:
            raise UserError("the corpus is empty: there is nothing to iterate over")
        self._corpus = corpus
        self._mix_lengths, self._packed, self._in_bands = mix_lengths, packed, in_bands
        self._limits: dict[str, Any] = {
            "max_tokens": max_tokens,
            "update_tokens": update_tokens,
            "seed": seed,
            "world_size": world_size,
        }
        self._rank, self._world_size = rank, world_size
        self._device = torch.device(device)
        self._updates = self._iterate(start_epoch, start_update)
        self._thread = ThreadPoolExecutor(1, "batches")
        if self._device.type == "cuda":
            if self._device.index is None:
                self._device = torch.device("cuda", torch.cuda.current_device())
            self._thread.submit(torch.cuda.set_device, self._device)
        self._ready: deque[Future[Update]] = deque()
        for _ in range(max(1, prefetch)):
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
        if self._packed and self._in_bands:
            return plan_bands(*lengths, **self._limits, epoch=epoch)
        if self._packed:
            plan = plan_packed(*lengths, **self._limits, epoch=epoch)
            shape: Shape | None = shape_of(plan, *lengths)
        else:
            mix = self._mix_lengths
            plan = plan_epoch(*lengths, **self._limits, epoch=epoch, mix_lengths=mix)
            shape = None
        return plan, [[shape] * len(update) for update in plan]

    def _iterate(self, epoch: int, first: int) -> Iterator[Update]:
        while True:
            plan, shapes = self._planned(epoch)
            if first > len(plan):
                raise UserError(f"update {first} of epoch {epoch}: it has only {len(plan)} updates")
            for number, update in enumerate(plan[first:], first):
                tokens = int(self._corpus.target_lengths[np.concatenate(update)].sum())
                mine = slice(self._rank, None, self._world_size)
                batches = [
                    collate(self._corpus, indices, shape)
                    for indices, shape in zip(update[mine], shapes[number][mine], strict=True)
                ]
                if self._device.type == "cuda":
                    batches = [batch.pin_memory() for batch in batches]
                yield Update(epoch, number, len(plan), batches, tokens)
            epoch, first = epoch + 1, 0
