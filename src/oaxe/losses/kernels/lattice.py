"""Sums over paths and best paths on the GPU, in float32: one program a sentence.

The reference is :mod:`oaxe.losses.lattice`. CTC holds all states of a step in registers. A graph's
links do not fit there: a step reads them in blocks, from the cache, and what the step before has
written. Each pass over a graph adds up words * vertices^2 / 2 ways, an exponential each: for 600
sentences of 27 words and 108 vertices 94 million, 0.03 ms at 3.8 * 10^12 a second; and the cache is
read 27 times, 0.4 GB in all.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH, MANY = 512, 32  # vertices of a block at most, and those that are added up to them at a time
TILE = 64  # rows and columns of links whose gradient a program adds up


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


def dag_sum(
    emissions: Tensor, links: Tensor, n_words: Tensor, n_vertices: Tensor
) -> tuple[Tensor, Tensor]:
    """What :func:`oaxe.losses.lattice.sum_of_paths` returns of a graph; the beginnings of words and
    vertices that take no part are not written."""
    total, alpha = emissions.new_empty(len(emissions)), torch.empty_like(emissions)
    _dag(emissions, links, n_words, n_vertices, alpha, alpha, total, best=False)
    return total, alpha


def dag_best_path(emissions: Tensor, links: Tensor, n_words: Tensor, n_vertices: Tensor) -> Tensor:
    """What :func:`oaxe.losses.lattice.best_states` returns of a graph."""
    path = n_words.new_full(emissions.shape[:2], -1)
    scores, origins = torch.empty_like(emissions), torch.empty_like(emissions, dtype=torch.int32)
    _dag(emissions, links, n_words, n_vertices, scores, origins, path, best=True)
    return path


def _dag(
    emissions: Tensor,
    links: Tensor,
    n_words: Tensor,
    n_vertices: Tensor,
    scores: Tensor,
    origins: Tensor,
    found: Tensor,
    best: bool,
) -> None:
    batch, words, vertices = emissions.shape
    if batch == 0:
        return
    with torch.cuda.device_of(emissions):
        _dag_kernel[(batch,)](
            emissions, links, n_words, n_vertices, scores, origins, found, words, vertices,
            best=best, **_of_vertices(vertices),
        )  # fmt: skip


def dag_backward(
    gradient: Tensor,
    total: Tensor,
    alpha: Tensor,
    emissions: Tensor,
    links: Tensor,
    n_words: Tensor,
    n_vertices: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of emissions and links; ``gradient (batch,)`` is that of the sums."""
    batch, words, vertices = emissions.shape
    of_emissions, onward = torch.zeros_like(emissions), torch.empty_like(emissions)
    of_links = torch.empty_like(links)
    if batch == 0:
        return of_emissions, of_links
    tiles = triton.cdiv(vertices, TILE)
    back = links.transpose(1, 2).contiguous()
    with torch.cuda.device_of(emissions):
        _dag_rests_kernel[(batch,)](
            emissions, back, n_words, n_vertices, alpha, total, gradient, of_emissions, onward,
            words, vertices, **_of_vertices(vertices),
        )  # fmt: skip
        _dag_links_kernel[(batch, tiles, tiles)](
            links, n_words, n_vertices, alpha, onward, total, gradient, of_links,
            words, vertices, tile=TILE,
        )  # fmt: skip
    return of_emissions, of_links


def _of_vertices(vertices: int) -> dict[str, int]:
    width = min(WIDTH, max(32, triton.next_power_of_2(vertices)))
    # The more vertices, the more warps: each thread holds MANY ways at a time.
    return {"width": width, "many": MANY, "num_warps": max(1, width // 32)}


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


@triton.jit(do_not_specialize=["words", "vertices"])
def _dag_kernel(
    emissions,  # (batch, words, vertices)
    links,  # (batch, vertices, vertices)
    n_words,  # (batch,) int64
    n_vertices,  # (batch,) int64
    scores,  # (batch, words, vertices)
    origins,  # (batch, words, vertices) int32, if best
    found,  # (batch,): the sum; if best, (batch, words) int64 vertices, -1 to begin with
    words,
    vertices,
    best: tl.constexpr,
    width: tl.constexpr,
    many: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    emissions += sentence * words * vertices
    scores += sentence * words * vertices
    origins += sentence * words * vertices
    links += sentence * vertices * vertices
    steps = tl.load(n_words + sentence).to(tl.int32)
    size = tl.load(n_vertices + sentence).to(tl.int32)
    for first in range(0, size, width):
        here = first + tl.arange(0, width)
        score = tl.load(emissions + here, (here == 0) & (steps > 0), float("-inf"))
        tl.store(scores + here, score, (here < size) & (steps > 0))
    for step in range(1, steps):
        tl.debug_barrier()  # the scores of the step before are written
        row = step * vertices
        for first in range(0, size, width):
            here = first + tl.arange(0, width)
            inside = here < size
            before = scores + row - vertices
            if best:
                score, origin = _best_way(before, links, first, size, vertices, width, many)
                tl.store(origins + row + here, origin, inside)
            else:
                score = _log_of_ways(before, links, first, size, vertices, True, width, many)
            score += tl.load(emissions + row + here, inside, float("-inf"))
            tl.store(scores + row + here, score, inside)

    tl.debug_barrier()
    last = (steps - 1) * vertices + size - 1
    score = tl.load(scores + last, (steps > 0) & (size > 0), float("-inf"))
    if best:
        found += sentence * words
        own = size - 1
        step = tl.where(score > float("-inf"), steps, 0) - 1
        while step >= 0:
            tl.store(found + step, own.to(tl.int64))
            if step > 0:
                own = tl.load(origins + step * vertices + own)
            step -= 1
    else:
        tl.store(found + sentence, score)


@triton.jit(do_not_specialize=["words", "vertices"])
def _dag_rests_kernel(
    emissions,  # (batch, words, vertices)
    links,  # (batch, vertices, vertices), from j to i, so that threads read what lies together
    n_words,  # (batch,) int64
    n_vertices,  # (batch,) int64
    alpha,  # (batch, words, vertices)
    total,  # (batch,)
    gradient,  # (batch,)
    of_emissions,  # (batch, words, vertices), zeros
    onward,  # (batch, words, vertices): a vertex, and all that may follow it
    words,
    vertices,
    width: tl.constexpr,
    many: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    emissions += sentence * words * vertices
    alpha += sentence * words * vertices
    of_emissions += sentence * words * vertices
    onward += sentence * words * vertices
    links += sentence * vertices * vertices
    steps = tl.load(n_words + sentence).to(tl.int32)
    size = tl.load(n_vertices + sentence).to(tl.int32)
    total = tl.load(total + sentence)
    total = tl.where(total == float("-inf"), 0.0, total)
    factor = tl.load(gradient + sentence)
    step = steps - 1
    while step >= 0:
        row = step * vertices
        for first in range(0, size, width):
            here = first + tl.arange(0, width)
            inside = here < size
            rest = tl.where(here == size - 1, 0.0, float("-inf"))
            if step < steps - 1:
                after = onward + row + vertices
                rest = _log_of_ways(after, links, first, size, vertices, False, width, many)
            begun = tl.load(alpha + row + here, inside, float("-inf"))
            tl.store(of_emissions + row + here, factor * tl.exp(begun + rest - total), inside)
            rest += tl.load(emissions + row + here, inside, float("-inf"))
            tl.store(onward + row + here, rest, inside)
        tl.debug_barrier()  # the next step reads it
        step -= 1


@triton.jit(do_not_specialize=["words", "vertices"])
def _dag_links_kernel(
    links,  # (batch, vertices, vertices)
    n_words,  # (batch,) int64
    n_vertices,  # (batch,) int64
    alpha,  # (batch, words, vertices)
    onward,  # (batch, words, vertices)
    total,  # (batch,)
    gradient,  # (batch,)
    of_links,  # (batch, vertices, vertices)
    words,
    vertices,
    tile: tl.constexpr,
):
    sentence = tl.program_id(0).to(tl.int64)
    alpha += sentence * words * vertices
    onward += sentence * words * vertices
    steps = tl.load(n_words + sentence).to(tl.int32)
    size = tl.load(n_vertices + sentence).to(tl.int32)
    total = tl.load(total + sentence)
    total = tl.where(total == float("-inf"), 0.0, total)
    i = tl.program_id(1) * tile + tl.arange(0, tile)
    j = tl.program_id(2) * tile + tl.arange(0, tile)
    at = sentence * vertices * vertices + i[:, None] * vertices + j[None, :]
    used = (i[:, None] < j[None, :]) & (j[None, :] < size)
    link = tl.load(links + at, used, float("-inf")) - total
    probability = tl.zeros([tile, tile], tl.float32)
    later = tl.program_id(1) <= tl.program_id(2)
    for step in range(1, tl.where(later, steps, 0)):
        begun = tl.load(alpha + (step - 1) * vertices + i, i < size, float("-inf"))
        rest = tl.load(onward + step * vertices + j, j < size, float("-inf"))
        probability += tl.exp(begun[:, None] + rest[None, :] + link)
    probability *= tl.load(gradient + sentence)
    tl.store(of_links + at, probability, (i[:, None] < vertices) & (j[None, :] < vertices))


@triton.jit
def _log_of_ways(
    values,
    links,
    first,
    size,
    vertices,
    forward: tl.constexpr,
    width: tl.constexpr,
    many: tl.constexpr,
):
    """The sum of all ways into a block of vertices, or out of them; -inf if there is none."""
    most = tl.full([width], float("-inf"), tl.float32)
    total = tl.zeros([width], tl.float32)  # of exp(way - most)
    if forward:
        begin = 0
        end = tl.minimum(size, first + width)
    else:
        begin = first
        end = size
    for start in range(begin, end, many):
        ways = _ways(values, links, start, first, size, vertices, forward, width, many)
        before = most
        most = tl.maximum(before, tl.max(ways, 0))
        shift = tl.where(most == float("-inf"), 0.0, most)  # so far, all of them are -inf
        total = total * tl.exp(before - shift) + tl.sum(tl.exp(ways - shift[None, :]), 0)
    return most + tl.log(total)


@triton.jit
def _best_way(values, links, first, size, vertices, width: tl.constexpr, many: tl.constexpr):
    """The best way into each vertex of a block, and where it comes from: the first of equals."""
    most = tl.full([width], float("-inf"), tl.float32)
    origin = tl.zeros([width], tl.int32)
    for start in range(0, tl.minimum(size, first + width), many):
        ways = _ways(values, links, start, first, size, vertices, True, width, many)
        best, at = tl.max(ways, 0, return_indices=True)
        origin = tl.where(best > most, start + at, origin)
        most = tl.maximum(most, best)
    return most, origin


@triton.jit
def _ways(
    values,
    links,
    start,
    first,
    size,
    vertices,
    forward: tl.constexpr,
    width: tl.constexpr,
    many: tl.constexpr,
):
    """``(many, width)``: values of vertices from start on, and their links with those from first"""
    other = (start + tl.arange(0, many))[:, None]
    here = (first + tl.arange(0, width))[None, :]
    value = tl.load(values + other, other < size, float("-inf"))
    used = (other < here) & (here < size)
    if not forward:
        used = (here < other) & (other < size)
    return value + tl.load(links + other * vertices + here, used, float("-inf"))
