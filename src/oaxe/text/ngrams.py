"""An n-gram language model: interpolated modified Kneser-Ney of Chen and Goodman (1998).

All n-grams of an order are counted and discounted at once, in numpy. An n-gram is known by its
context, the n-gram of the order below without its last word, and that word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oaxe.support.errors import UserError
from oaxe.text.corpus import Sentences
from oaxe.text.symbols import BOS, EOS, SYMBOLS, UNK

Array = NDArray[Any]
NEVER = float(np.log(1e-99))  # log-probability of what is never predicted
USUAL_DISCOUNTS = (0.5, 1.0, 1.5)  # for text that is too small to estimate them
MOST_ORDER = 8


@dataclass(frozen=True)
class Order:
    """The n-grams of one order, by their keys."""

    keys: Array  # (n,) int64, sorted: number of the context in the order below * vocab + word
    log_probs: Array  # (n,) float32, natural: of the word after the context, interpolated
    backoffs: Array  # (n,) float32: log-weight of the order below, after this n-gram


@dataclass(frozen=True)
class NGrams:
    """Orders 1 to n. The first has an entry for every word of the vocabulary."""

    vocab_size: int
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class Counts:
    """The n-grams of one order in a text, sorted by their keys."""

    context: Array  # number in the order below
    word: Array
    suffix: Array  # number in the order below of the n-gram without its first word
    raw: Array  # how often
    begins: Array  # bool: with BOS


def estimate(
    sentences: Sentences, vocab_size: int, order: int, prune: Sequence[int] = ()
) -> NGrams:
    """Interpolated modified Kneser-Ney.

    p(w | c) = (count(c w) - D) / count(c) + backoff(c) p(w | c without its first word), where the
    counts of lower orders are numbers of different words in front, and D depends on the count.

    Args:
        sentences: token ids; BOS and EOS are added.
        order: of the longest n-grams.
        prune: n-grams that occur no more often than this are left out: a number for each order,
            the last one for all that follow; those of order 1 are always kept.
    """
    check_order(order, prune)
    if not len(sentences):
        raise UserError("there is no text to count n-grams in")
    counts = _count(sentences, vocab_size, order)
    limits = [(prune[min(n, len(prune) - 1)] if prune and n else 0) for n in range(order)]
    kept = [of.raw > limit for of, limit in zip(counts, limits, strict=True)]
    kept[0][:] = True  # also what does not occur
    probs, backoffs = _discount(counts, kept, vocab_size)
    orders = []
    number = np.zeros(1, np.int64)  # of the n-grams that are kept of the order below
    for n, of in enumerate(counts):
        keys = number[of.context] * vocab_size + of.word
        log_probs = np.log(np.maximum(probs[n], 1e-99))
        values = (keys, log_probs.astype(np.float32), np.log(backoffs[n]).astype(np.float32))
        orders.append(Order(*(value[kept[n]] for value in values)))
        number = np.cumsum(kept[n]) - 1
    return NGrams(vocab_size, tuple(order for order in orders if len(order.keys)))


def check_order(order: int, prune: Sequence[int] = ()) -> None:
    if not 1 <= order <= MOST_ORDER:
        raise UserError(f"the order must be from 1 to {MOST_ORDER}, got {order}")
    if list(prune) != sorted(prune) or any(limit < 0 for limit in prune):
        raise UserError(
            f"limits of pruning must not fall from one order to the next, got {list(prune)}; "
            "for example 0,0,1: what occurs once is left out from order 3 on"
        )
    if len(prune) > order:
        raise UserError(
            f"there are {len(prune)} limits of pruning for {order} orders; leave some out"
        )


def _count(sentences: Sentences, vocab_size: int, order: int) -> list[Counts]:
    """All n-grams, also those of order 1 that do not occur."""
    text, sentence = _text(sentences)
    raw = np.bincount(text, minlength=vocab_size)
    word, nothing = np.arange(vocab_size), np.zeros(vocab_size, np.int64)
    counts = [Counts(nothing, word, nothing, raw, word == BOS)]
    ids = text  # of the n-gram that begins at each position
    for n in range(2, order + 1):
        ends = text[n - 1 :]
        inside = np.flatnonzero(sentence[: len(ends)] == sentence[n - 1 :])
        keys = ids[inside] * vocab_size + ends[inside]
        keys, first, number, raw = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        context, word = np.divmod(keys, vocab_size)
        suffix = ids[inside[first] + 1]
        counts.append(Counts(context, word, suffix, raw, counts[-1].begins[context]))
        ids = np.full(len(text), -1)
        ids[inside] = number
    return counts


def _text(sentences: Sentences) -> tuple[Array, Array]:
    """All sentences with BOS and EOS, one behind the other; and the sentence of each position."""
    lengths, offsets = sentences.lengths.astype(np.int64), sentences.offsets
    n = len(sentences)
    tokens = sentences.tokens[offsets[0] : offsets[-1]]
    text = np.empty(len(tokens) + 2 * n, np.int64)
    begins = offsets[:-1] - offsets[0] + 2 * np.arange(n)
    text[begins], text[begins + lengths + 1] = BOS, EOS
    text[np.arange(len(tokens)) + 2 * np.repeat(np.arange(n), lengths) + 1] = tokens
    return text, np.repeat(np.arange(n), lengths + 2)


def _discount(
    counts: list[Counts], kept: list[Array], vocab_size: int
) -> tuple[list[Array], list[Array]]:
    """Interpolated probabilities of all n-grams, and the weights of the order below."""
    probs = [_uniform(vocab_size)]  # of order 0, in the place of the suffixes of order 1
    backoffs = []
    for n, of in enumerate(counts):
        count = of.raw
        if n + 1 < len(counts):  # different words in front; nothing stands in front of BOS
            in_front = np.bincount(counts[n + 1].suffix, minlength=len(count))
            count = np.where(of.begins, of.raw, in_front)
        if n == 0:
            count = np.where(of.begins, 0, count)  # it is never predicted
        discounted = count - _discounts(count)[np.minimum(count, 3)]
        n_contexts = len(counts[n - 1].raw) if n else 1
        total = np.bincount(of.context, count, n_contexts)
        share = np.maximum(discounted, 0.0) / np.maximum(total[of.context], 1)
        # What was discounted, and all of what is left out, is for the order below.
        left = 1 - np.bincount(of.context[kept[n]], share[kept[n]], n_contexts)
        left = np.where(total > 0, np.clip(left, 1e-12, 1.0), 1.0)
        lower = probs[-1] if n == 0 else probs[-1][of.suffix]
        probs.append(share + left[of.context] * lower)
        backoffs.append(left)
    return probs[1:], [*backoffs[1:], np.ones(len(counts[-1].raw))]


def _uniform(vocab_size: int) -> Array:
    """The uniform distribution over words, UNK and EOS."""
    predicted = np.arange(vocab_size) >= len(SYMBOLS)
    predicted[[UNK, EOS]] = True
    return predicted / predicted.sum()


def _discounts(count: Array) -> Array:
    """D of counts 0, 1, 2, and 3 or more, from how many n-grams have each count."""
    n = np.bincount(np.minimum(count, 5), minlength=6)[1:5].astype(float)
    if n.all():
        y = n[0] / (n[0] + 2 * n[1])
        found = [k - (k + 1) * y * n[k] / n[k - 1] for k in (1, 2, 3)]
        if min(found) > 0:
            return np.array([0.0, *found])
    return np.array([0.0, *USUAL_DISCOUNTS])
