"""An n-gram language model for searches on a CPU, without torch: see :mod:`oaxe.search.ngrams`."""

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oaxe.text.ngram_files import ARRAYS, check_vocabulary, load_ngrams
from oaxe.text.ngrams import NGrams, Order
from oaxe.text.symbols import BOS, EOS

NONE = -1  # the number of an n-gram that is not there
State = tuple[int, ...]  # the number of the n-gram of the last n words, from n = 1


class NGramTable:
    """Log-probabilities of words after their contexts, of which each has its words side by side."""

    def __init__(self, ngrams: NGrams) -> None:
        self.order = len(ngrams.orders)
        before = 1
        self._orders = []
        for order in ngrams.orders:
            self._orders.append(_by_context(order, before, ngrams.vocab_size))
            before = len(order.keys)
        arrays = [[array.ctypes.data for array in order] for order in self._orders]
        self.addresses: NDArray[np.uint64] = np.array(arrays, np.uint64)  # for the C code
        self._find = cache(self._look_up)

    @property
    def begin(self) -> State:
        """Before the first word."""
        return (BOS, *[NONE] * (self.order - 2))[: self.order - 1]

    def log_prob(self, state: Sequence[int], word: int) -> tuple[float, State]:
        """Natural, of a word after a state; and the state after it.

        Example:
            >>> from oaxe.text.corpus import Sentences
            >>> from oaxe.text.ngrams import estimate
            >>> text = Sentences(np.array([7, 8, 7, 8]), np.array([0, 2, 4]))
            >>> table = NGramTable(estimate(text, 9, order=2))
            >>> log_prob, after = table.log_prob((7,), 8)
            >>> round(float(np.exp(log_prob)), 4), after
            (0.6458, (8,))
        """
        found, after = float(self._orders[0][2][word]), [word]
        for n in range(1, self.order):
            context = state[n - 1]
            at = self._find(n, context, word)
            if at != NONE:
                found = float(self._orders[n][2][at])
            elif context != NONE:
                found += float(self._orders[n - 1][3][context])
            after.append(at)
        return found, tuple(after[: self.order - 1])

    def end(self, state: Sequence[int]) -> float:
        """Log-probability that the sentence ends here."""
        return self.log_prob(state, EOS)[0]

    def _look_up(self, n: int, context: int, word: int) -> int:
        if context == NONE:
            return NONE
        words, first, *_ = self._orders[n]
        low, high = int(first[context]), int(first[context + 1])
        at = low + int(np.searchsorted(words[low:high], word))
        return at if at < high and words[at] == word else NONE


def _by_context(order: Order, n_contexts: int, vocab_size: int) -> tuple[NDArray[np.generic], ...]:
    """Words, where those of each context begin, log-probabilities, back-off weights."""
    context, word = np.divmod(order.keys, vocab_size)
    first = np.searchsorted(context, np.arange(n_contexts + 1))
    arrays = word.astype(np.int32), first, order.log_probs, order.backoffs
    return tuple(np.ascontiguousarray(array) for array in arrays)


def ngram_table(folder: str | None, vocab_size: int) -> NGramTable | None:
    """That of a folder, which is read once; raises UserError if it is of another vocabulary."""
    if folder is None:
        return None
    path = Path(folder)
    changed = path / ARRAYS
    table, found = _loaded(path, changed.stat().st_mtime_ns if changed.exists() else 0)
    check_vocabulary(path, found, vocab_size)
    return table


@lru_cache(maxsize=4)
def _loaded(path: Path, changed: int) -> tuple[NGramTable, int]:
    ngrams = load_ngrams(path)
    return NGramTable(ngrams), ngrams.vocab_size
