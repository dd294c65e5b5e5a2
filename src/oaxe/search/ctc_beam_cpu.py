"""Prefix beam search for CTC on a CPU, without torch: the search of :mod:`oaxe.search.ctc_beam`.

In C, or where that was not compiled in Python, which takes twenty times as long.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oaxe.search.hypothesis import Hypothesis, Positions
from oaxe.search.ngram_table import NGramTable
from oaxe.support.extras import warn_not_compiled
from oaxe.text.symbols import BLANK, BOS, EOS

try:
    from oaxe.search import _ctc_beam
except ImportError:  # no C compiler
    _ctc_beam = None  # type: ignore[assignment]

NEVER = -1e30  # in place of log(0)


class Labels(NamedTuple):
    """What the one pass of the network says, of all sentences one behind the other."""

    words: NDArray[np.int64]  # (positions, n): the likeliest n of each, all different, in order
    log_probs: NDArray[np.float32]  # (positions, n): theirs
    blanks: NDArray[np.float32]  # (positions,): log-probability of a blank


class How(NamedTuple):
    """What is searched for: see :func:`oaxe.search.ctc_beam.ctc_prefix_beam`."""

    beam: int
    bonus: float = 0.0
    table: NGramTable | None = None
    weight: float = 0.0


def prefix_beam(labels: Labels, lengths: NDArray[np.int64], how: How) -> list[list[Hypothesis]]:
    """Of each sentence of ``lengths`` positions up to ``how.beam`` translations, best first."""
    ends = np.cumsum(lengths)
    parts = [
        Labels(labels.words[a:b], labels.log_probs[a:b], labels.blanks[a:b])
        for a, b in pairwise([0, *ends.tolist()])
    ]
    if _ctc_beam is None:
        warn_not_compiled("beam search is in Python, twenty times slower")
    found = _in_c(labels, ends, how) if _ctc_beam else [_in_python(part, how) for part in parts]
    return [
        [
            Hypothesis(text, score, len(part.blanks), total, partial(aligned, text, part))
            for text, score, total in of_sentence
        ]
        for of_sentence, part in zip(found, parts, strict=True)
    ]


Found = Iterable[tuple[list[int], float, float]]  # text, score, log-probability


def _in_c(labels: Labels, ends: NDArray[np.int64], how: How) -> list[Found]:
    words = np.ascontiguousarray(labels.words, np.int32)
    said = labels.log_probs, labels.blanks
    given = [np.ascontiguousarray(np.maximum(of, NEVER), np.float32) for of in said]
    n_orders, addresses = 0, np.zeros(1, np.uint64)
    if how.table:
        n_orders, addresses = how.table.order, how.table.addresses
    sentences, longest = len(ends), int(np.diff(ends, prepend=0).max())
    tokens = np.empty((sentences, how.beam, longest), np.int32)
    n_tokens = np.empty((sentences, how.beam), np.int64)
    scores, totals = np.empty((2, sentences, how.beam))
    n_found = np.empty(sentences, np.int64)
    arrays: list[NDArray[Any]] = [words, *given, ends, addresses]
    arrays += [tokens, n_tokens, scores, totals, n_found]
    _ctc_beam.search(
        *(array.ctypes.data for array in arrays),
        *(sentences, words.shape[1], n_orders, how.beam, longest, BOS, EOS),
        *(how.weight, how.bonus),
    )
    return [
        [
            (row[:count].tolist(), score, total)
            for row, count, score, total in zip(
                *(tokens[i, :n], *(of[i, :n].tolist() for of in (n_tokens, scores, totals))),
                strict=True,
            )
        ]
        for i, n in enumerate(n_found.tolist())
    ]


def aligned(text: Sequence[int], labels: Labels) -> Positions:
    """Of the alignments that say a text the likeliest: what each position says."""
    wanted = [BLANK, *chain.from_iterable((word, BLANK) for word in text)]
    best = [0.0, *[NEVER] * (len(wanted) - 1)]
    columns = [
        {BLANK: blank, **dict(zip(words, log_probs, strict=True))}
        for words, log_probs, blank in zip(*(of.tolist() for of in labels), strict=True)
    ]
    origins = list[list[int]]()
    for says in columns:
        origin = []
        for i, label in enumerate(wanted):  # from itself, the one before, or past a blank
            past = i > 1 and label not in (BLANK, wanted[i - 2])
            origin.append(max(range(max(0, i - 1 - past), i + 1), key=best.__getitem__))
        said = [max(says.get(label, NEVER), NEVER) for label in wanted]
        best = [best[o] + log_prob for o, log_prob in zip(origin, said, strict=True)]
        origins.append(origin)
    path = [max(range(max(0, len(wanted) - 2), len(wanted)), key=best.__getitem__)]
    for origin in reversed(origins[1:]):
        path.append(origin[path[-1]])
    path.reverse()
    tokens = [wanted[i] for i in path]
    log_probs = [says[token] for token, says in zip(tokens, columns, strict=True)]
    kept = [t for t, i in enumerate(path) if i % 2 and i not in path[:t]]
    return Positions(np.array(tokens), np.array(log_probs, np.float32), kept)


class Prefix(NamedTuple):
    blank: float  # log-probability of the prefix and a blank behind it
    word: float  # the same without a blank
    fluency: float  # what a language model adds to the score
    state: tuple[int, ...]  # of that


def _in_python(labels: Labels, how: How) -> Found:
    table, weight = how.table, how.weight
    begin = Prefix(0.0, NEVER, 0.0, table.begin if table else ())
    prefixes: dict[tuple[int, ...], Prefix] = {(): begin}
    for words, log_probs, blank in zip(*(of.tolist() for of in labels), strict=True):
        says = dict(zip(words, log_probs, strict=True))
        following = dict[tuple[int, ...], Prefix]()
        for text, before in prefixes.items():
            total = log_add(before.blank, before.word)
            again = before.word + says.get(text[-1], NEVER) if text else NEVER
            _add(following, text, before._replace(blank=total + blank, word=again))
            for word, log_prob in says.items():
                # A word that repeats the last one is a new one only behind a blank.
                first = before.blank if text and text[-1] == word else total
                longer = before._replace(blank=NEVER, word=first + log_prob)
                if table:
                    more, state = table.log_prob(before.state, word)
                    longer = longer._replace(fluency=before.fluency + weight * more, state=state)
                _add(following, (*text, word), longer)
        best = sorted(
            following.items(), key=lambda item: _score(item[0], item[1], how.bonus), reverse=True
        )[: how.beam]
        prefixes = {text: p for text, p in best if max(p.blank, p.word) > NEVER / 2}
    found = list[tuple[list[int], float, float]]()
    for text, prefix in prefixes.items():
        score = _score(text, prefix, how.bonus) + (weight * table.end(prefix.state) if table else 0)
        total = log_add(prefix.blank, prefix.word)
        found.append((list(text), score / len(labels.blanks), total))
    return sorted(found, key=lambda one: one[1], reverse=True)


def _add(prefixes: dict[tuple[int, ...], Prefix], text: tuple[int, ...], new: Prefix) -> None:
    if old := prefixes.get(text):
        new = new._replace(blank=log_add(old.blank, new.blank), word=log_add(old.word, new.word))
    prefixes[text] = new


def _score(text: tuple[int, ...], prefix: Prefix, bonus: float) -> float:
    return log_add(prefix.blank, prefix.word) + prefix.fluency + bonus * len(text)


def log_add(a: float, b: float) -> float:
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))
