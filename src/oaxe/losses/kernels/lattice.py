"""Sums over paths and best paths on the GPU: one program a sentence, all states at once.

The reference is :mod:`oaxe.losses.lattice`. Scores are float32; a step reads what the step before
has written, so that the lattice of a sentence stays in the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def ctc_sum(
    emissions: Tensor, words: Tensor, n_predictions: Tensor, n_targets: Tensor
) -> tuple[Tensor, Tensor]:
    """What :func:`oaxe.losses.lattice.sum_of_paths` returns of a CTC lattice; the beginnings of
    positions that take no part are not written."""
    batch, length, columns = emissions.shape
    total = emissions.new_empty(batch)
    alpha = emissions.new_empty(batch, length, 2 * columns - 1)
    _ctc(emissions, words, n_predictions, n_targets, alpha, total, best=False)
    return total, alpha


def ctc_best_path(
    emissions: Tensor, words: Tensor, n_predictions: Tensor, n_targets: Tensor
) -> Tensor:
    """What :func:`oaxe.losses.lattice.best_states` returns of a CTC lattice."""
    batch, length, columns = emissions.shape
    states = words.new_full((batch, length), -1)
    moves = words.new_empty(batch, length, 2 * columns - 1, dtype=torch.uint8)
    _ctc(emissions, words, n_predictions, n_targets, moves, states, best=True)
    return states


def _ctc(
    emissions: Tensor,
    words: Tensor,
    n_predictions: Tensor,
    n_targets: Tensor,
    kept: Tensor,
    found: Tensor,
    best: bool,
) -> None:
    batch, length, columns = emissions.shape
    if batch == 0:
        return
    with torch.cuda.device_of(emissions):
        _ctc_kernel[(batch,)](
            emissions, words, n_predictions, n_targets, kept, found, length, columns - 1,
            best=best, **_of_states(2 * columns - 1),
        )  # fmt: skip


def ctc_backward(
    gradient: Tensor,
    total: Tensor,
    alpha: Tensor,
    emissions: Tensor,
    words: Tensor,
    n_predictions: Tensor,
    n_targets: Tensor,
) -> Tensor:
    """Gradient of the emissions; ``gradient (batch,)`` is that of the sums."""
    batch, length, columns = emissions.shape
    of_emissions = torch.zeros_like(emissions)
    if batch == 0:
        return of_emissions
    with torch.cuda.device_of(emissions):
        _ctc_backward_kernel[(batch,)](
            emissions, words, n_predictions, n_targets, alpha, total, gradient, of_emissions,
            length, columns - 1, **_of_states(2 * columns - 1),
        )  # fmt: skip
    return of_emissions


def _of_states(states: int) -> dict[str, int]:
    block = max(32, triton.next_power_of_2(states))
    return {"block": block, "num_warps": min(8, max(1, block // 64))}


@triton.jit(do_not_specialize=["length", "n"])
def _ctc_kernel(
    emissions,  # (batch, length, n + 1); the last is the blank's
    words,  # (batch, n) int64
    n_predictions,  # (batch,) int64
    n_targets,  # (batch,) int64
    kept,  # (batch, length, 2n + 1): scores of the states; if best, moves, uint8
    found,  # (batch,): the sum; if best, (batch, length) int64 states, -1 to begin with
    length,
    n,
    best: tl.constexpr,
    block: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    emissions += sentence * length * (n + 1)
    kept += sentence * length * (2 * n + 1)
    steps = tl.load(n_predictions + sentence).to(tl.int32)
    last = 2 * tl.load(n_targets + sentence).to(tl.int32)

    state = tl.arange(0, block)
    inside = state <= last
    column = tl.where(state % 2 == 1, state // 2, n)
    skips = _past_a_blank(words + sentence * n, state, inside)
    score = tl.load(emissions + column, inside & (state < 2) & (steps > 0), float("-inf"))
    if not best:
        tl.store(kept + state, score, inside & (steps > 0))
    for step in range(1, steps):
        here = tl.load(emissions + step * (n + 1) + column, inside, float("-inf"))
        one = _moved(score, state - 1, state >= 1)
        two = _moved(score, state - 2, skips)
        most = tl.maximum(tl.maximum(score, one), two)
        at = kept + step * (2 * n + 1) + state
        if best:
            move = tl.where(two > tl.maximum(score, one), 2, tl.where(one > score, 1, 0))
            tl.store(at, move.to(tl.uint8), inside)
            score = most + here
        else:
            score = _log_of_sum(score, one, two, most) + here
            tl.store(at, score, inside)

    ends = tl.where(inside & (state >= last - 1), score, float("-inf"))
    most = tl.max(ends, 0)
    if best:
        tl.debug_barrier()  # the moves are written
        found += sentence * length
        own = tl.min(tl.where(ends == most, state, block), 0)
        step = tl.where(most > float("-inf"), steps, 0) - 1
        while step >= 0:
            tl.store(found + step, own.to(tl.int64))
            if step > 0:
                own -= tl.load(kept + step * (2 * n + 1) + own).to(tl.int32)
            step -= 1
    else:
        shift = tl.where(most == float("-inf"), 0.0, most)
        tl.store(found + sentence, most + tl.log(tl.sum(tl.exp(ends - shift), 0)))


@triton.jit(do_not_specialize=["length", "n"])
def _ctc_backward_kernel(
    emissions,  # (batch, length, n + 1)
    words,  # (batch, n) int64
    n_predictions,  # (batch,) int64
    n_targets,  # (batch,) int64
    alpha,  # (batch, length, 2n + 1)
    total,  # (batch,)
    gradient,  # (batch,)
    of_emissions,  # (batch, length, n + 1), zeros
    length,
    n,
    block: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    emissions += sentence * length * (n + 1)
    of_emissions += sentence * length * (n + 1)
    alpha += sentence * length * (2 * n + 1)
    steps = tl.load(n_predictions + sentence).to(tl.int32)
    last = 2 * tl.load(n_targets + sentence).to(tl.int32)
    total = tl.load(total + sentence)
    total = tl.where(total == float("-inf"), 0.0, total)
    factor = tl.load(gradient + sentence)

    state = tl.arange(0, block)
    inside = state <= last
    is_word = state % 2 == 1
    column = tl.where(is_word, state // 2, n)
    skips = _past_a_blank(words + sentence * n, state, inside)
    rest = tl.where(inside & (state >= last - 1), 0.0, float("-inf"))
    step = steps - 1
    while step >= 0:
        begun = tl.load(alpha + step * (2 * n + 1) + state, inside, float("-inf"))
        posterior = factor * tl.exp(begun + rest - total)
        row = of_emissions + step * (n + 1)
        tl.store(row + column, posterior, inside & is_word)
        tl.store(row + n, tl.sum(tl.where(inside & (is_word == 0), posterior, 0.0), 0))
        onward = rest + tl.load(emissions + step * (n + 1) + column, inside, float("-inf"))
        one = _moved(onward, state + 1, state + 1 < block)
        two = _moved(tl.where(skips, onward, float("-inf")), state + 2, state + 2 < block)
        most = tl.maximum(tl.maximum(onward, one), two)
        rest = _log_of_sum(onward, one, two, most)
        step -= 1


@triton.jit
def _past_a_blank(words, state, inside):
    """Whether a state may follow the one before the last: a word after another word."""
    follows = inside & (state % 2 == 1) & (state > 1)
    word = tl.load(words + state // 2, follows, 0)
    before = tl.load(words + state // 2 - 1, follows, 0)
    return follows & (word != before)


@triton.jit
def _moved(score, origin, exists):
    """``score[origin]``, -inf where there is none."""
    return tl.where(exists, tl.gather(score, tl.where(exists, origin, 0), 0), float("-inf"))


@triton.jit
def _log_of_sum(a, b, c, most):
    """Of three, given the greatest; -inf if all are."""
    shift = tl.where(most == float("-inf"), 0.0, most)
    return most + tl.log(tl.exp(a - shift) + tl.exp(b - shift) + tl.exp(c - shift))
