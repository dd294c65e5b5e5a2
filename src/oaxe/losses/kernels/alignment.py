"""AXE's best monotone alignment on the GPU: one program a sentence.

The recursion goes along anti-diagonals d = i + j, all targets i at once, as in
:mod:`oaxe.losses.axe`; the way back follows the moves that were noted.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ALIGN, SKIP_PREDICTION, SKIP_TARGET = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


def align(
    word_cost: Tensor, blank_cost: Tensor, n_targets: Tensor, n_predictions: Tensor, delta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`oaxe.losses.axe.monotone_alignment` returns, as a tuple."""
    batch, m, n = word_cost.shape
    position = n_targets.new_zeros(batch, n, dtype=torch.int64)
    skipped = n_targets.new_zeros(batch, n, dtype=torch.uint8)
    blank = n_targets.new_zeros(batch, m, dtype=torch.uint8)
    moves = n_targets.new_empty(batch, n + m + 1, n + 1, dtype=torch.uint8)
    if batch == 0:
        return position, skipped.view(torch.bool), blank.view(torch.bool)
    block = triton.next_power_of_2(n + 1)
    with torch.cuda.device_of(word_cost):
        _align[(batch,)](
            word_cost.contiguous(),
            blank_cost.contiguous(),
            n_targets.contiguous(),
            n_predictions.contiguous(),
            moves,
            position,
            skipped,
            blank,
            delta,
            m,
            n,
            block=max(32, block),
            num_warps=min(8, max(1, block // 64)),
        )
    return position, skipped.view(torch.bool), blank.view(torch.bool)


@triton.jit(do_not_specialize=["delta", "m", "n"])
def _align(
    word_cost,  # (batch, m, n)
    blank_cost,  # (batch, m)
    n_targets,  # (batch,) int64
    n_predictions,  # (batch,) int64
    moves,  # (batch, n + m + 1, n + 1) uint8
    position,  # (batch, n) int64
    skipped,  # (batch, n) uint8
    blank,  # (batch, m) uint8
    delta,
    m,
    n,
    block: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    word_cost += sentence * m * n
    blank_cost += sentence * m
    moves += sentence * (n + m + 1) * (n + 1)
    position += sentence * n
    skipped += sentence * n
    blank += sentence * m
    n_own = tl.load(n_targets + sentence).to(tl.int32)
    m_own = tl.load(n_predictions + sentence).to(tl.int32)

    i = tl.arange(0, block)
    left = tl.maximum(i - 1, 0)
    dtype: tl.constexpr = word_cost.dtype.element_ty
    last = tl.where(i == 0, 0.0, float("inf")).to(dtype)  # of the diagonal before
    aligned = tl.full([block], float("inf"), dtype)  # of the one before that, moved to i - 1
    for d in range(1, n_own + m_own + 1):
        j = d - i
        inside = (i <= n_own) & (j >= 0) & (j <= m_own)
        at = tl.maximum(j - 1, 0)  # prediction 1 stands in where j = 0
        here = tl.load(word_cost + at * n + i - 1, inside & (i > 0), float("inf"))
        left_over = tl.load(blank_cost + at, inside, float("inf"))
        moved = tl.where(i == 0, float("inf"), tl.gather(last, left, 0))
        best = aligned + here
        move = tl.full([block], ALIGN, tl.uint8)
        skip_prediction = last + left_over
        move = tl.where(skip_prediction < best, SKIP_PREDICTION, move)
        best = tl.minimum(best, skip_prediction)
        skip_target = moved + delta * here
        move = tl.where((i > 0) & (skip_target < best), SKIP_TARGET, move)
        best = tl.where(i > 0, tl.minimum(best, skip_target), best)
        tl.store(moves + d * (n + 1) + i, move, inside)
        aligned = moved
        last = tl.where(inside, best, float("inf")).to(dtype)

    tl.debug_barrier()  # the moves are written
    i_own, j_own = n_own, m_own
    while (i_own > 0) | (j_own > 0):
        move = tl.load(moves + (i_own + j_own) * (n + 1) + i_own).to(tl.int32)
        # Where every way costs infinity, any move may have been noted: stay inside.
        move = tl.where(i_own == 0, SKIP_PREDICTION, tl.where(j_own == 0, SKIP_TARGET, move))
        if move == SKIP_PREDICTION:
            tl.store(blank + j_own - 1, 1)
        else:
            tl.store(position + i_own - 1, tl.maximum(j_own - 1, 0).to(tl.int64))
            tl.store(skipped + i_own - 1, (move == SKIP_TARGET).to(tl.uint8))
        i_own -= (move != SKIP_PREDICTION).to(tl.int32)
        j_own -= (move != SKIP_TARGET).to(tl.int32)
