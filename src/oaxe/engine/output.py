"""The output layer: the likeliest words at each position, and their log-probabilities.

Hidden states are multiplied with the embeddings of all words; of these products only the largest
and the logsumexp count. In int8 the embeddings have 8 bits and a scale a word; the states get 7
bits and a scale a position, so that two products fit into 16 bits and every processor computes the
same whole numbers. The layout in memory is that of the C code in ``_output.c``, which keeps a panel
of words in the cache for all positions: 16 words side by side, 4 numbers of each.
"""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from itertools import pairwise
from threading import local
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oaxe.support.extras import warn_not_compiled

try:
    from oaxe.engine import _output
except ImportError:  # no C compiler
    _output = None  # type: ignore[assignment]

Floats = NDArray[np.float32]
Found = tuple[NDArray[np.int64], Floats]  # words and log-probabilities


class Likely(NamedTuple):
    """Of each position the likeliest words in order, and one that stands apart, such as BLANK."""

    words: NDArray[np.int64]  # (positions, n), without the one that stands apart
    log_probs: Floats  # (positions, n)
    apart: Floats  # (positions,): log-probability of that one; NEVER if there is none


LARGEST = 127  # of an embedding
MIDDLE, REACH = 64, 63  # a state is MIDDLE + a whole number from -REACH to REACH
WORDS, NUMBERS = 16, 4  # side by side in memory
PANEL, ROWS = 64, 4  # words and positions that the C code takes at a time
ENOUGH = 2**27  # products that are worth several threads: about half a millisecond of one
AT_ONCE = 2**24  # logits in memory, where there is no C code
NEVER = np.float32(-1e30)  # the logit of what may not be predicted

THIS_THREAD = local()


def compute_alone() -> None:
    """In this thread share no output layer with others: they have passes of their own."""
    THIS_THREAD.is_alone = True


class Output:
    """What all kinds of it have in common."""

    vocab_size: int

    def likely(
        self, hidden: Floats, never: Sequence[int], n: int, apart: int | None = None
    ) -> Likely:
        """Of ``hidden (positions, dim)`` the likeliest words, in order.

        Args:
            never: words that may not be predicted, and have no part in the probability.
            n: how many, at most.
            apart: a word that is none of them, for those who compare it with all others.
        """
        n_words = self.vocab_size - len({*never, -1 if apart is None else apart} - {-1})
        return self._likely(hidden, never, max(1, min(n, n_words)), apart)

    def likeliest(self, hidden: Floats, never: Sequence[int]) -> Found:
        """Of ``hidden (positions, dim)``; ``never`` are the words that may not be predicted."""
        found = self.likely(hidden, never, 1)
        return found.words[:, 0], found.log_probs[:, 0]

    def _likely(self, hidden: Floats, never: Sequence[int], n: int, apart: int | None) -> Likely:
        raise NotImplementedError


class FloatOutput(Output):
    """``weight (vocab, dim)``"""

    def __init__(self, weight: Floats) -> None:
        self.weight = weight
        self.vocab_size = len(weight)

    def embed(self, tokens: NDArray[np.int64]) -> Floats:
        """``(..., dim)``"""
        return self.weight[tokens]

    def _likely(self, hidden: Floats, never: Sequence[int], n: int, apart: int | None) -> Likely:
        parts = _parts(hidden, self.vocab_size)
        return _joined([_largest(part @ self.weight.T, never, n, apart) for part in parts], n)


class Int8Output(Output):
    """Embeddings of whole numbers, with a scale for each word.

    Args:
        packed: ``(blocks, dim / NUMBERS, WORDS, NUMBERS)``, of :func:`pack`.
        scale: ``(vocab,)``.
        sums: ``(vocab,)``: of the numbers of each word.
        threads: that share the words, unless :func:`compute_alone` was called.
        path: of the C code; None: the best that the processor has, or numpy.
    """

    def __init__(
        self,
        packed: NDArray[np.int8],
        scale: Floats,
        sums: NDArray[np.int32],
        threads: int = 1,
        path: str | None = None,
    ) -> None:
        self.packed, self.scale, self.sums = packed, scale, sums
        self.vocab_size = len(scale)
        self.path = path or paths()[0]
        if path is None and self.path == "numpy":
            _say_once()
        n_panels = len(packed) * WORDS // PANEL
        ends = np.linspace(0, n_panels, min(threads, n_panels) + 1).round().astype(int).tolist()
        self._shares = list(pairwise(ends))
        self._pool = ThreadPoolExecutor(len(self._shares), "output")

    def embed(self, tokens: NDArray[np.int64]) -> Floats:
        """``(..., dim)``"""
        rows = self.packed[tokens // WORDS, :, tokens % WORDS]
        embedded: Floats = rows.reshape(*tokens.shape, -1) * self.scale[tokens, None]
        return embedded

    def _likely(self, hidden: Floats, never: Sequence[int], n: int, apart: int | None) -> Likely:
        if self.path == "numpy":
            return self._with_numpy(hidden, never, n, apart)
        n_rows, dim = hidden.shape
        if dim != self.packed.shape[1] * NUMBERS:  # the C code does not ask
            raise ValueError(f"states of {dim} numbers, words of {self.packed.shape[1] * NUMBERS}")
        states, row_scale = quantised_states(np.pad(hidden, ((0, -n_rows % ROWS), (0, 0))))
        excluded = np.array(never, np.int64)
        given = states, row_scale, self.packed, self.scale, self.sums, excluded
        aside_id = -1 if apart is None else apart
        sizes = len(states), dim // NUMBERS, self.vocab_size, len(excluded), n, aside_id

        def best_of(panels: tuple[int, int]) -> tuple[NDArray[Any], ...]:
            top = np.full((len(states), n), 2 * NEVER, np.float32)
            word = np.zeros((len(states), n), np.int64)
            peak, total, aside = np.zeros((3, len(states)), np.float32)
            peak[:], aside[:] = 2 * NEVER, NEVER
            arrays = (array.ctypes.data for array in (*given, top, word, peak, total, aside))
            _output.likeliest(self.path, *arrays, *sizes, *panels)
            return tuple(found[:n_rows] for found in (top, word, peak, total, aside))

        alone = getattr(THIS_THREAD, "is_alone", False) or len(self._shares) == 1
        if alone or n_rows * self.packed.size < ENOUGH:
            shares = [best_of((0, self._shares[-1][1]))]
        else:
            shares = list(self._pool.map(best_of, self._shares))
        tops, words, peaks, totals, asides = (
            np.stack(parts) for parts in zip(*shares, strict=True)
        )
        peak = peaks.max(0)
        log_total = np.log((totals * np.exp(peaks - peak)).sum(0))
        top, word = np.concatenate(tops, 1), np.concatenate(words, 1)
        if len(shares) > 1:
            order = np.argsort(-top, 1, kind="stable")[:, :n]
            top, word = np.take_along_axis(top, order, 1), np.take_along_axis(word, order, 1)
        return Likely(
            word, top - peak[:, None] - log_total[:, None], asides.max(0) - peak - log_total
        )

    @cached_property
    def _floats(self) -> Floats:
        """Of whole numbers below 2 ** 24, products in float32 are exact in whatever order."""
        return unpack(self.packed)[: self.vocab_size].astype(np.float32)

    def _with_numpy(
        self, hidden: Floats, never: Sequence[int], n: int, apart: int | None
    ) -> Likely:
        states, scale = quantised_states(hidden)
        found = []
        start = 0
        for part in _parts(states, self.vocab_size):
            products = (part.astype(np.float32) - MIDDLE) @ self._floats.T
            logits = products * self.scale * scale[start : start + len(part), None]
            found.append(_largest(logits, never, n, apart))
            start += len(part)
        return _joined(found, n)


@cache
def _say_once() -> None:
    slower = "numpy multiplies in int8, slower"
    if _output is None:
        warn_not_compiled(slower)
    else:
        message = f"oaxe multiplies with AVX2 or NEON, which this processor lacks: {slower}"
        warnings.warn(message, stacklevel=2)


def paths() -> list[str]:
    """How logits in int8 can be computed here: in C with VNNI or AVX2, by numpy; fastest first."""
    return [*([] if _output is None else _output.paths()), "numpy"]


def quantised_states(hidden: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """``hidden ≈ (states - MIDDLE) * scale``, a scale for each position.

    Example:
        >>> states, scale = quantised_states(np.array([[0.5, -1.0, 0.0]], np.float32))
        >>> states.tolist(), scale.tolist()
        ([[96, 1, 64]], [0.01587301678955555])
    """
    scale = np.maximum(np.abs(hidden).max(1), np.float32(1e-20)) / np.float32(REACH)
    states = np.rint(hidden / scale[:, None] + MIDDLE).astype(np.uint8)
    return states, scale


def pack(rounded: NDArray[np.int8]) -> NDArray[np.int8]:
    """``(vocab, dim)`` to ``(blocks, dim / NUMBERS, WORDS, NUMBERS)``; zeros fill up a panel.

    Example:
        >>> table = np.arange(17 * 8, dtype=np.int8).reshape(17, 8)
        >>> pack(table).shape, np.array_equal(unpack(pack(table))[:17], table)
        ((4, 2, 16, 4), True)
    """
    vocab, dim = rounded.shape
    padded = np.pad(rounded, ((0, -vocab % PANEL), (0, 0)))
    blocks = padded.reshape(-1, WORDS, dim // NUMBERS, NUMBERS)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))


def unpack(packed: NDArray[np.int8]) -> NDArray[np.int8]:
    """The inverse of :func:`pack`, with the words that filled up the last panel."""
    blocks, groups, words, numbers = packed.shape
    return packed.transpose(0, 2, 1, 3).reshape(blocks * words, groups * numbers)


def _parts(rows: NDArray[Any], vocab_size: int) -> list[NDArray[Any]]:
    at_once = max(1, AT_ONCE // vocab_size)
    return [rows[i : i + at_once] for i in range(0, len(rows), at_once)]


def _largest(logits: Floats, never: Sequence[int], n: int, apart: int | None) -> Likely:
    logits[:, list(never)] = NEVER
    logits -= logits.max(1, keepdims=True)
    log_total = np.log(np.exp(logits).sum(1, keepdims=True))
    aside = np.full(len(logits), NEVER)
    if apart is not None:
        aside = logits[:, apart] - log_total[:, 0]
        logits[:, apart] = 2 * NEVER
    if n == 1:
        words = logits.argmax(1)[:, None]
    else:
        words = np.sort(np.argpartition(-logits, n - 1, 1)[:, :n], 1)
        order = np.argsort(-np.take_along_axis(logits, words, 1), 1, kind="stable")
        words = np.take_along_axis(words, order, 1)
    return Likely(words, np.take_along_axis(logits, words, 1) - log_total, aside)


def _joined(found: list[Likely], n: int) -> Likely:
    if not found:
        nothing = np.zeros((0, n), np.float32)
        return Likely(nothing.astype(np.int64), nothing, nothing[:, 0])
    return Likely(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
