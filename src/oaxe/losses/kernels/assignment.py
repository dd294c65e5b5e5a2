"""Exact assignment on the GPU: one program a sentence, its state in registers, its costs in cache.

The same method as the solver in C: row and column reduction, a greedy start, then a shortest
augmenting path for every row that is still free. It computes in float64 for float64 costs and in
float32 for all others, which halves the instructions. The total of an answer is then no more than
2**-24 * n * max|cost| above the optimum: what rounding the total itself to float32 may cost. (In
practice it was a tenth of that at worst, and mostly nothing: distances are differences of costs,
and a path is only ever compared with others.)

Sentences fall into classes by their length. There is a launch for each class that the padded width
allows, the longest first and beside the others; a program whose sentence is of another class leaves
at once. So the host need not know any length, and nothing is compiled for a new shape.
"""

from functools import cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor

LONGEST = 1024
# Of a class, by its longest sentence: warps, and rows of costs that are copied at a time.
CLASSES = {32: (1, 16), 64: (1, 8), 128: (1, 4), 256: (1, 8), 512: (4, 8), 1024: (8, 8)}
SHORTEST = min(CLASSES)
MATCHED = tl.constexpr(1 << 20)  # above all numbers of free columns
INTEGER_MAX = tl.constexpr(0x7FFFFFFF)


def solve(cost: Tensor, mask: Tensor | None, not_finite: Tensor) -> Tensor:
    """``(batch, n)`` int64 columns of ``cost (batch, n, n)``, for n up to LONGEST.

    ``not_finite (at least batch,)`` uint8 becomes 1 for a problem with an infinite or NaN cost;
    such a problem gets the identity. It may lie in pinned host memory.
    """
    batch, n = cost.shape[:2]
    column = torch.empty(batch, n, dtype=torch.int64, device=cost.device)
    if column.numel() == 0:
        return column
    cost = cost.contiguous()
    given_mask = cost if mask is None else mask.contiguous().view(torch.uint8)
    quarter = triton.cdiv(n, 4)  # rows that begin at 16 bytes are loaded four costs at a time
    number = torch.promote_types(cost.dtype, torch.float32)
    wide = torch.empty(batch, n, 4 * quarter, dtype=number, device=cost.device)
    launch = partial(
        _solve[(batch,)],
        cost,
        wide,
        given_mask,
        column,
        not_finite,
        n,
        quarter,
        scale=2.0**-8,  # sums must stay finite
        number=tl.float64 if number == torch.float64 else tl.float32,
        masked=mask is not None,
    )
    classes = [size for size in sorted(CLASSES, reverse=True) if size < 2 * n or size == SHORTEST]
    # A few long sentences leave most of the GPU idle: the others need not wait for them.
    beside = _second_stream(cost.device) if cost.is_cuda and len(classes) > 1 else None
    with torch.cuda.device_of(cost):
        if beside is not None:
            beside.wait_stream(torch.cuda.current_stream())
        for size in classes:
            warps, rows = CLASSES[size]
            with torch.cuda.stream(beside if size == classes[0] else None):
                launch(block=size, shortest=size == SHORTEST, rows=rows, num_warps=warps)
        if beside is not None:
            torch.cuda.current_stream().wait_stream(beside)
    return column


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@triton.jit(do_not_specialize=["n", "quarter"])
def _solve(
    cost,  # (batch, n, n)
    wide,  # (batch, n, 4 * quarter) float32 or float64, to work with
    mask,  # (batch, n) uint8, if masked
    column,  # (batch, n) int64
    not_finite,  # (batch,) uint8
    n,
    quarter,
    scale: tl.constexpr,
    number: tl.constexpr,  # float32 or float64
    masked: tl.constexpr,
    block: tl.constexpr,
    shortest: tl.constexpr,
    rows: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    width = quarter * 4
    cost += sentence * n * n
    wide += sentence * n * width
    column += sentence * n
    position = tl.arange(0, block)
    extent = n  # one more than the last position that takes part
    if masked:
        mask += sentence * n
        extent = 0 * n
        for first in range(0, n, block):
            here = first + position
            takes_part = tl.load(mask + here, here < n, 0) != 0
            extent = tl.maximum(extent, tl.max(tl.where(takes_part, here + 1, 0), 0))
    if (extent <= block) & (shortest | (extent > block // 2)):
        takes_part = position < extent
        if masked:
            takes_part = tl.load(mask + position, takes_part, 0) != 0
        finite = _copy_scaled(
            cost, wide, mask, n, width, extent, takes_part, scale, number, masked, block, rows
        )
        row_of, row_potential, potential, free = _reduce_and_match(
            wide, mask, width, extent, takes_part, number, masked, block
        )
        free = free & finite
        row_of = _augment(wide, width, row_of, row_potential, potential, free, number, block)
        if not finite:
            tl.store(not_finite + sentence, 1)
        row = tl.where(takes_part & finite, row_of, position)
        tl.store(column + row, position.to(tl.int64), position < extent)
        for first in range(0, n, block):  # what comes after stays where it is
            here = first + position
            tl.store(column + here, here.to(tl.int64), (here >= extent) & (here < n))


@triton.jit
def _copy_scaled(
    cost,
    wide,
    mask,
    n,
    width,
    extent,
    takes_part,
    scale: tl.constexpr,
    number: tl.constexpr,
    masked: tl.constexpr,
    block: tl.constexpr,
    rows: tl.constexpr,
):
    """Costs to work with, infinite where a column takes no part; False if any other is not finite.

    Many rows are under way at once.
    """
    position = tl.arange(0, block)[None, :]
    wrong = tl.zeros([rows, block], tl.int32)
    for first in range(0, extent, rows):
        i = first + tl.arange(0, rows)
        in_mask = i < extent
        if masked:
            in_mask = tl.load(mask + i, in_mask, 0) != 0
        in_mask = in_mask[:, None]
        costs = tl.load(cost + i[:, None] * n + position, in_mask & takes_part[None, :], 0)
        wrong |= (tl.abs(costs) < float("inf")).to(tl.int32) ^ 1
        costs = tl.where(takes_part[None, :], costs.to(number) * scale, float("inf"))
        tl.store(wide + i[:, None] * width + position, costs, in_mask & (position < width))
    tl.debug_barrier()  # other threads read it now
    return tl.max(tl.max(wrong, 1), 0) == 0


@triton.jit
def _reduce_and_match(
    wide,
    mask,
    width,
    extent,
    takes_part,
    number: tl.constexpr,
    masked: tl.constexpr,
    block: tl.constexpr,
):
    """Potentials from row and column minima, and the matches that those minima suggest."""
    position = tl.arange(0, block)
    row_of = tl.full([block], -1, tl.int32)  # the row matched to a column
    free = takes_part  # rows without a column
    row_potential = tl.zeros([block], number)
    potential = tl.full([block], float("inf"), number)  # of the columns
    first_row = tl.zeros([block], tl.int32)  # of each column's minimum
    following = _row(wide, 0, width, position)
    for i in range(extent):
        costs = following
        # Before it is needed:
        following = _row(wide, tl.minimum(i + 1, extent - 1), width, position)
        in_mask = True
        if masked:
            in_mask = tl.load(mask + i) != 0
        if in_mask:
            is_least, least = _least(costs)
            row_potential = tl.where(position == i, least, row_potential)
            reduced = costs - least
            lower = reduced < potential
            first_row = tl.where(lower, i, first_row)
            potential = tl.where(lower, reduced, potential)
            choice = tl.min(tl.where(is_least & (row_of < 0), position, MATCHED), 0)
            row_of = tl.where(position == choice, i, row_of)
            free = free & ((position != i) | (choice == MATCHED))
    # A free column takes the row of its minimum, if that one is free too.
    pair = tl.where(takes_part & (row_of < 0), first_row * block + position, MATCHED)
    best = tl.min(pair, 0)
    while best < MATCHED:
        i, j = best // block, best % block
        if tl.max(tl.where(free & (position == i), 1, 0), 0) > 0:
            row_of = tl.where(position == j, i, row_of)
            free = free & (position != i)
        pair = tl.where(first_row == i, MATCHED, pair)
        best = tl.min(pair, 0)
    return row_of, row_potential, tl.where(takes_part, potential, 0.0), free


@triton.jit
def _augment(
    wide, width, row_of, row_potential, potential, free, number: tl.constexpr, block: tl.constexpr
):
    """Match every free row along a shortest path to a free column.

    Distances are of reduced costs, so none is below that of the column scanned last. That is made
    sure of, where rounding says otherwise: numbers that are not negative are ordered as their bits.
    """
    position = tl.arange(0, block)
    start = tl.min(tl.where(free, position, MATCHED), 0)
    while start < MATCHED:
        distance = tl.full([block], float("inf"), number)  # of the columns not scanned yet
        scanned = tl.full([block], float("inf"), number)  # of the others
        before = tl.full([block], -1, tl.int32)  # the column before, on the path; -1: the start
        still_open = potential  # minus infinity closes a column: nothing is near it
        # Of the row matched to a column; the potentials of the two add up to the cost.
        of_row = _row(wide, tl.where(row_of < 0, 0, row_of), width, position) - potential
        shortest = tl.full([], 0, number)
        offset = -_at(row_potential, position == start)
        costs = _row(wide, start, width, position)
        j = tl.full([], -1, tl.int32)
        # Free columns come first; the row rides along with the column that it is matched to.
        rank = tl.where(row_of < 0, position, MATCHED + row_of * block + position)
        best = MATCHED + 0 * start
        while best >= MATCHED:
            through = tl.maximum(costs + (offset - still_open), shortest)
            nearer = through < distance
            distance = tl.where(nearer, through, distance)
            before = tl.where(nearer, j, before)
            is_least, shortest = _least_of_positive(distance)
            best = tl.min(tl.where(is_least, rank, INTEGER_MAX), 0)
            j = best % block
            if best >= MATCHED:
                # Early, and by another turn of the loop than where it is used: all loads are under
                # way at once, while the column is closed.
                costs = _row(wide, (best - MATCHED) // block, width, position)
                here = position == j
                offset = shortest - _at(of_row, here)
                scanned = tl.where(here, shortest, scanned)
                distance = tl.where(here, float("inf"), distance)
                still_open = tl.where(here, float("-inf"), still_open)
        potential = tl.where(scanned < float("inf"), potential - (shortest - scanned), potential)
        while j >= 0:
            previous = _integer_at(before, position == j)
            row = _integer_at(row_of, position == previous)
            row_of = tl.where(position == j, tl.where(previous < 0, start, row), row_of)
            j = previous
        free = free & (position != start)
        start = tl.min(tl.where(free, position, MATCHED), 0)
    return row_of


@triton.jit
def _row(wide, row, width, position):
    return tl.load(wide + row * width + position, position < width, float("inf"))


@triton.jit
def _least(x):
    """Where the least number is, and what."""
    if x.dtype == tl.float32:
        is_least, least = _least_of_integers(_ordered(x.to(tl.int32, bitcast=True)))
        return is_least, _ordered(least).to(tl.float32, bitcast=True)
    else:  # noqa: RET505
        is_least, least = _least_of_integers(_ordered(x.to(tl.int64, bitcast=True)))
        return is_least, _ordered(least).to(tl.float64, bitcast=True)


@triton.jit
def _least_of_positive(x):
    """The same, where none is negative."""
    if x.dtype == tl.float32:
        is_least, least = _least_of_integers(x.to(tl.int32, bitcast=True))
        return is_least, least.to(tl.float32, bitcast=True)
    else:  # noqa: RET505
        is_least, least = _least_of_integers(x.to(tl.int64, bitcast=True))
        return is_least, least.to(tl.float64, bitcast=True)


@triton.jit
def _least_of_integers(x):
    """A warp has one instruction for the minimum of int32, where that of a float takes five
    shuffles; int64 is done by the high and then the low halves."""
    if x.dtype == tl.int32:
        least = tl.min(x, 0)
        return x == least, least
    else:  # noqa: RET505
        high = (x >> 32).to(tl.int32)
        low = x.to(tl.int32) ^ (-0x80000000)
        least_high = tl.min(high, 0)
        least_low = tl.min(tl.where(high == least_high, low, INTEGER_MAX), 0)
        is_least = (high == least_high) & (low == least_low)
        return is_least, _joined(least_high, least_low ^ (-0x80000000))


@triton.jit
def _ordered(bits):
    """Its own inverse: the bits of a float to an integer of the same order."""
    if bits.dtype == tl.int32:
        return bits ^ ((bits >> 31) & 0x7FFFFFFF)
    else:  # noqa: RET505
        return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@triton.jit
def _joined(high, low):
    return (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _at(x, here):
    """The number in the one position that is True."""
    if x.dtype == tl.float32:
        return _integer_at(x.to(tl.int32, bitcast=True), here).to(tl.float32, bitcast=True)
    else:  # noqa: RET505
        bits = x.to(tl.int64, bitcast=True)
        high = _integer_at((bits >> 32).to(tl.int32), here)
        return _joined(high, _integer_at(bits.to(tl.int32), here)).to(tl.float64, bitcast=True)


@triton.jit
def _integer_at(x, here):
    return tl.sum(tl.where(here, x, 0), 0)
