"""Beam search over what a graph says, on a CPU and without torch.

The search of :mod:`oaxe.search.graph_beam` in C, or where that was not compiled in numpy.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oaxe.search.hypothesis import Hypothesis, Positions
from oaxe.search.ngram_table import NGramTable
from oaxe.support.extras import warn_not_compiled
from oaxe.text.symbols import BOS, EOS

try:
    from oaxe.search import _graph_beam
except ImportError:  # no C compiler
    _graph_beam = None  # type: ignore[assignment]

ASKED = 4  # extensions, for each that is kept, that a language model is asked about
LEAST_LINK = -60.0  # log-probability: what is less likely would vanish beside what is likely

Doubles = NDArray[np.float64]


class Graph(NamedTuple):
    """What decoding looks for a path in, as in :mod:`oaxe.search.graph`."""

    words: NDArray[np.int64]  # (batch, vertices, n): the likeliest n of each vertex, in order
    log_probs: NDArray[np.float32]  # (batch, vertices, n): theirs
    links: NDArray[np.float32]  # (batch, vertices, vertices): -inf where there is none
    last: NDArray[np.int64]  # (batch,): the last vertex
    limit: NDArray[np.int64]  # (batch,): the most words, with EOS


class How(NamedTuple):
    """What is searched for: see :func:`oaxe.search.graph_beam.prefix_beam`."""

    beam: int
    length_penalty: float = 1.0
    table: NGramTable | None = None
    weight: float = 0.0

    @property
    def asked(self) -> int:
        """Extensions of all prefixes that are looked at."""
        return self.beam * (ASKED if self.table else 1)


class Said(NamedTuple):
    """One graph by its words: where each of them is said, and with what probability."""

    words: NDArray[np.int32]  # (n,): all different
    first: NDArray[np.int64]  # (n + 1,): word i is said from first[i] to before first[i + 1]
    vertices: NDArray[np.int64]  # (said,)
    probs: NDArray[np.float32]  # (said,)
    links: NDArray[np.float32]  # (vertices, vertices): probabilities
    n_steps: int  # the most words, with EOS

    @property
    def widest(self) -> int:
        """Vertices that say the same word, at most."""
        return int(np.diff(self.first).max(initial=1))


Found = Iterable[tuple[list[int], list[int], float, float]]  # text, path, score, log-probability


def prefix_beam(graph: Graph, how: How) -> list[list[Hypothesis]]:
    """Of each graph up to ``how.beam`` translations, best first."""
    if _graph_beam is None:
        warn_not_compiled("beam search is in Python, twenty times slower")
    search = _in_c if _graph_beam else _in_python
    found = list[list[Hypothesis]]()
    for words, log_probs, links, last, limit in zip(*graph, strict=True):
        between = words[1:last], log_probs[1:last]
        said = by_words(*between, links[: last + 1, : last + 1], int(limit))
        found.append([])
        for text, path, score, total in search(said, how):
            positions = partial(on_path, text, path, *between)
            found[-1].append(Hypothesis(text, score, len(text) + 1, total, positions))
    return found


def by_words(
    words: NDArray[np.int64],
    log_probs: NDArray[np.float32],
    links: NDArray[np.float32],
    limit: int,
) -> Said:
    """Of ``words (vertices - 2, n)``: the first vertex and the last one say nothing.

    Example:
        >>> words, nothing = np.array([[9], [8], [9]]), np.zeros((3, 1), np.float32)
        >>> said = by_words(words, nothing, np.full((5, 5), -np.inf, np.float32), 4)
        >>> said.words.tolist(), said.first.tolist(), said.vertices.tolist()
        ([8, 9], [0, 1, 3], [2, 1, 3])
    """
    flat = words.ravel()
    order = np.argsort(flat, kind="stable")
    different, first = np.unique(flat[order], return_index=True)
    probs = np.exp(log_probs.ravel()[order], dtype=np.float32)
    linked = np.exp(np.maximum(links, LEAST_LINK), dtype=np.float32) * (links > -np.inf)
    return Said(
        different.astype(np.int32),
        np.append(first, len(flat)),
        1 + order // max(words.shape[1], 1),
        probs,
        np.ascontiguousarray(linked),
        max(1, min(limit, len(links) - 1)),
    )


def _in_c(said: Said, how: How) -> Found:
    n_orders, addresses = 0, np.zeros(1, np.uint64)
    if how.table:
        n_orders, addresses = how.table.order, how.table.addresses
    tokens, paths = np.empty((2, how.beam, said.n_steps), np.int32)
    n_tokens = np.empty(how.beam, np.int64)
    scores, totals = np.empty((2, how.beam))
    arrays: list[NDArray[Any]] = [*said[:5], addresses, tokens, paths, n_tokens, scores, totals]
    n = _graph_beam.search(
        *(array.ctypes.data for array in arrays),
        *(len(said.words), len(said.links), said.widest, said.n_steps, n_orders),
        *(how.beam, how.asked, BOS, EOS, how.weight, how.length_penalty),
    )
    return [
        (tokens[i, :length].tolist(), paths[i, :length].tolist(), score, total)
        for i, (length, score, total) in enumerate(
            zip(*(of[:n].tolist() for of in (n_tokens, scores, totals)), strict=True)
        )
    ]


class Prefix(NamedTuple):
    text: tuple[int, ...]  # numbers of its words
    total: float  # log-probability
    fluency: float  # what a language model adds to the score
    state: tuple[int, ...]  # of that


def _in_python(said: Said, how: How) -> Found:
    table, words = how.table, said.words.tolist()
    prefixes = [Prefix((), 0.0, 0.0, table.begin if table else ())]
    share = np.eye(1, len(said.links))  # (prefixes, vertices)
    finished = list[tuple[float, Prefix]]()
    for step in range(said.n_steps):
        reach = share @ said.links
        for prefix, end in zip(prefixes, reach[:, -1].tolist(), strict=True):
            if end > 0:
                fluency = prefix.fluency
                if table:
                    fluency += how.weight * table.end(prefix.state)
                done = prefix._replace(total=prefix.total + float(np.log(end)), fluency=fluency)
                score = (done.total + fluency) / (step + 1) ** how.length_penalty
                finished.append((score, done))
        finished = sorted(finished, key=lambda one: one[0], reverse=True)[: how.beam]
        if step + 1 < said.n_steps and prefixes:
            prefixes, share = _extended(prefixes, reach, said, how)
    return [
        ([words[i] for i in one.text], _likeliest_path(one.text, said), score, one.total)
        for score, one in finished
    ]


def _extended(
    prefixes: Sequence[Prefix], reach: Doubles, said: Said, how: How
) -> tuple[list[Prefix], Doubles]:
    """The best prefixes of one more word, and where they end; ``reach (prefixes, vertices)``."""
    here = reach[:, said.vertices] * said.probs  # (prefixes, said)
    with np.errstate(divide="ignore"):
        added = np.log(np.add.reduceat(here, said.first[:-1], 1))  # (prefixes, n)
    rank = (added + [[prefix.total + prefix.fluency] for prefix in prefixes]).ravel()
    asked = np.argsort(-rank, kind="stable")[: how.asked]
    new = list[tuple[float, int, Prefix]]()
    for at in asked[rank[asked] > -np.inf].tolist():
        origin, word = divmod(at, len(said.words))
        before = prefixes[origin]
        total = before.total + float(added[origin, word])
        longer = before._replace(text=(*before.text, word), total=total)
        if how.table:
            log_prob, state = how.table.log_prob(before.state, int(said.words[word]))
            fluency = before.fluency + how.weight * log_prob
            longer = longer._replace(fluency=fluency, state=state)
        new.append((total + longer.fluency, origin, longer))
    new = sorted(new, key=lambda one: one[0], reverse=True)[: how.beam]
    share = np.zeros((len(new), reach.shape[1]))
    for row, (_, origin, prefix) in zip(share, new, strict=True):
        part = slice(*said.first[prefix.text[-1] :][:2])
        row[said.vertices[part]] = here[origin, part] / here[origin, part].sum()
    return [prefix for _, _, prefix in new], share


def _likeliest_path(text: Sequence[int], said: Said) -> list[int]:
    """Of the paths that say a text: its vertices."""
    best, at, origins = np.ones(1), np.zeros(1, np.int64), list[tuple[Any, Any]]()
    for word in text:
        part = slice(*said.first[word:][:2])
        to = said.vertices[part]
        through = best[:, None] * said.links[np.ix_(at, to)]
        best = through.max(0) * said.probs[part]
        best /= best.max() or 1.0  # not to vanish
        origins.append((to, through.argmax(0)))
        at = to
    chosen, path = int((best * said.links[at, -1]).argmax()), list[int]()
    for to, origin in reversed(origins):
        path.append(int(to[chosen]))
        chosen = int(origin[chosen])
    return path[::-1]


def on_path(
    text: Sequence[int],
    path: Sequence[int],
    words: NDArray[np.int64],
    log_probs: NDArray[np.float32],
) -> Positions:
    """What the vertices say between the ends: those of the path the text, others what is likeliest.

    Args:
        path: counted from the first vertex, which says nothing.
        words, log_probs: ``(vertices - 2, n)``.
    """
    at = np.array(path, np.int64) - 1
    rank = np.zeros(len(words), np.int64)
    rank[at] = (words[at] == np.array(text)[:, None]).argmax(1)
    here = np.arange(len(words))
    return Positions(words[here, rank], log_probs[here, rank], at, at.tolist())
