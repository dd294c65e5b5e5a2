"""Which sentences of an epoch form an update, and how it is cut into micro-batches.

An update is what the optimiser steps on: a fixed number of target tokens over all ranks. It is cut
into micro-batches that fit into memory. The seed and the epoch alone decide which sentences form an
update; the number of ranks changes only the cuts.

Padded batches hold sentences of similar lengths. Packed ones hold sentences of all lengths, and all
have one shape: a model that leaves out the padding computes that shape alone, and no position
without a word. Some systems have matrices of all positions of a sentence, which cannot be packed:
for these the corpus is cut into bands of similar lengths, each of which has one shape.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oaxe.support.errors import UserError

Indices = NDArray[np.int64]
ROUNDED = 256  # room is a multiple: the same in all epochs, and whole tiles of matrix products
BANDS = 16  # of similar lengths, at most: each is one more shape
OVERFULL = 1.1  # a packed batch may have so many times max_tokens rather than be cut in two


class Room(NamedTuple):
    """The most tokens on either side of a packed batch; its rows have more places than that."""

    source: int
    target: int
    words: int = 0  # of the targets, EOS included, for systems that ask for it


class Shape(NamedTuple):
    """What all packed batches of an epoch, or of a band, have in common."""

    rows: int
    source: int  # places of a row
    target: int
    room: Room


@dataclass(frozen=True)
class Limits:
    """What the plan of an epoch depends on besides the lengths of its sentences."""

    max_tokens: int  # of each side of a micro-batch, with padding and EOS; about, if it is packed
    update_tokens: int  # target tokens of an update
    seed: int  # with the epoch, all that randomness depends on
    epoch: int
    world_size: int = 1

    def __post_init__(self) -> None:
        if min(self.max_tokens, self.update_tokens, self.world_size) < 1:
            raise UserError(
                "max_tokens, update_tokens and world_size must be 1 or more; "
                f"got {self.max_tokens}, {self.update_tokens} and {self.world_size}"
            )


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
    limits: Limits,
    *,
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
        mix_lengths: let sentences of any lengths share a micro-batch, of up to ``max_tokens``
            whatever ``update_tokens`` is. That costs padding, and helps where an update has few
            micro-batches and what is learned depends on the length.
    """
    rng = np.random.default_rng([limits.seed, limits.epoch])
    order = rng.permutation(len(source_lengths))
    if not mix_lengths:
        order = _by_length(order, source_lengths, target_lengths)
    at_most = None if mix_lengths else limits.update_tokens
    batches = cut(source_lengths, target_lengths, order, limits.max_tokens, at_most)
    batches = [batches[i] for i in rng.permutation(len(batches))]
    tokens = np.array([target_lengths[batch].sum() for batch in batches])
    ends = np.cumsum(tokens)
    total = int(ends[-1]) if len(ends) else 0
    n_updates = max(1, round(total / limits.update_tokens))
    # A batch belongs to the update that holds its middle, on a line of all tokens of the epoch.
    update = ((ends - tokens / 2) * n_updates / max(total, 1)).astype(np.int64)
    groups = np.split(np.arange(len(batches)), np.flatnonzero(np.diff(update)) + 1)
    n = limits.world_size
    return [share([batches[i] for i in group], n) for group in groups if len(group)]


def share(batches: list[Indices], world_size: int) -> list[Indices]:
    """Halve the batches with most sentences until the ranks can have equally many."""
    batches = sorted(batches, key=len, reverse=True)
    while len(batches) % world_size and len(batches[0]) > 1:
        half = (len(batches[0]) + 1) // 2
        batches = sorted([batches[0][:half], batches[0][half:], *batches[1:]], key=len)[::-1]
    return batches


def plan_packed(
    source_lengths: NDArray[Any], target_lengths: NDArray[Any], limits: Limits
) -> list[list[Indices]]:
    """The same for packed micro-batches, each a sample of the whole corpus.

    In the order of their lengths, sentences are dealt out to the updates, and those of an update to
    its micro-batches. So all of these have the same number of sentences, but for one, and about the
    same number of tokens; of the target they differ by no more than the longest sentence has.
    """
    if not len(source_lengths):
        return []
    rng, world_size = np.random.default_rng([limits.seed, limits.epoch]), limits.world_size
    order = _by_length(rng.permutation(len(source_lengths)), source_lengths, target_lengths)
    n_updates = max(1, round(int(target_lengths.sum()) / limits.update_tokens))
    updates = _deal(order, min(n_updates, len(order)), rng)
    tokens = max(int((source_lengths + 1).sum()), int(target_lengths.sum())) / len(updates)
    n_batches = world_size * math.ceil(tokens / (OVERFULL * limits.max_tokens * world_size))
    return [[b for b in _deal(update, n_batches, rng) if len(b)] for update in updates]


def plan_bands(
    source_lengths: NDArray[Any], target_lengths: NDArray[Any], limits: Limits
) -> tuple[list[list[Indices]], list[list[Shape]]]:
    """The same for packed micro-batches of similar lengths; and the shape of each of them.

    In the order of their lengths, of the source above all, sentences are cut into bands, and those
    of a band are dealt out to its micro-batches, which have one shape. Which of them form an update
    is random. Each has about the same number of target tokens, whatever its band.
    """
    if not len(source_lengths):
        return [], []
    rng = np.random.default_rng([limits.seed, limits.epoch])
    order = _by_length(rng.permutation(len(source_lengths)), target_lengths, source_lengths)
    n_updates = min(max(1, round(int(target_lengths.sum()) / limits.update_tokens)), len(order))
    tokens = max(int((source_lengths + 1).sum()), int(target_lengths.sum())) / n_updates
    size = math.ceil(tokens / (OVERFULL * limits.max_tokens))  # batches of an update
    bands = _bands(order, source_lengths, target_lengths, size * n_updates)
    dealt = [
        (batch, band)
        for band, (sentences, n_batches) in enumerate(bands)
        for batch in _deal(sentences, n_batches, rng)
    ]
    dealt = [dealt[i] for i in rng.permutation(len(dealt))]
    # Only now, so that the number of ranks changes nothing else: the ranks have equally many.
    parts = limits.world_size // math.gcd(size, limits.world_size)
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
    """The smallest shape that all micro-batches of a packed plan fit into."""
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
    """Deal out sentences as cards: round by round, one to each hand, in random order.

    The first round, of the shortest sentences, may be too small for all hands.
    """
    rounds = np.full(math.ceil(len(order) / hands) * hands, -1)
    rounds[len(rounds) - len(order) :] = order
    dealt = rng.permuted(rounds.reshape(-1, hands), axis=1)
    return [hand[hand >= 0] for hand in np.ascontiguousarray(dealt.T)]


def _by_length(
    order: Indices, source_lengths: NDArray[Any], target_lengths: NDArray[Any]
) -> Indices:
    """The sentences sorted by target length, then by source length."""
    for lengths in (source_lengths, target_lengths):
        # Stable on 16 bits is a radix sort: 20 million pairs are planned in 6 s, not 11.
        keys = np.minimum(lengths[order], 65_535).astype(np.uint16)
        order = order[np.argsort(keys, kind="stable")]
    return order
