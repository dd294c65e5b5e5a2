"""An n-gram language model that searches ask: many contexts and words at once, on any device."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from oaxe.text.ngram_files import ARRAYS, check_vocabulary, load_ngrams
from oaxe.text.ngrams import NGrams
from oaxe.text.symbols import BOS, EOS

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5)  # worth trying


class LanguageModel:
    """Log-probabilities of words after their contexts.

    The n-grams of an order are sorted by their keys, which are searched for by halves: a longer
    n-gram that is there counts, else the one below it, with the back-off weight of the context.
    """

    def __init__(self, ngrams: NGrams, device: torch.device | str = "cpu") -> None:
        self.vocab_size, self.order = ngrams.vocab_size, len(ngrams.orders)
        self._orders = [
            tuple(torch.from_numpy(array).to(device) for array in vars(order).values())
            for order in ngrams.orders
        ]

    def begin(self, like: Tensor) -> Tensor:
        """``(..., order - 1)``: the context of the first word, for a tensor ``(...)``."""
        return like.new_full((*like.shape, self.order - 1), BOS, dtype=torch.int64)

    def after(self, context: Tensor, word: Tensor) -> Tensor:
        """The context of what follows a word."""
        return torch.cat([context, word.unsqueeze(-1)], -1)[..., 1:]

    def log_prob(self, context: Tensor, word: Tensor) -> Tensor:
        """``(...)``, natural: of ``word (...)`` after ``context (..., order - 1)``.

        Example:
            >>> import numpy as np
            >>> from oaxe.text.corpus import Sentences
            >>> from oaxe.text.ngrams import estimate
            >>> text = Sentences(np.array([7, 8, 7, 8]), np.array([0, 2, 4]))
            >>> lm = LanguageModel(estimate(text, 9, order=2))
            >>> lm.log_prob(torch.tensor([[7], [8]]), torch.tensor([8, 8])).exp()
            tensor([0.6458, 0.1458])
        """
        found = self._orders[0][1][word]
        for n in range(2, self.order + 1):
            before, known = context[..., self.order - n], None
            for m in range(2, n):  # the context, from its first word
                before, known = self._find(m, before, context[..., self.order - n + m - 1], known)
            backoff = self._orders[n - 2][2][before]
            if known is not None:
                backoff = backoff.where(known, 0.0)
            at, there = self._find(n, before, word, known)
            found = torch.where(there, self._orders[n - 1][1][at], found + backoff)
        return found

    def end(self, context: Tensor) -> Tensor:
        """``(...)``: log-probability that the sentence ends here."""
        return self.log_prob(context, context.new_full(context.shape[:-1], EOS))

    def _find(
        self, n: int, before: Tensor, word: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Where the n-gram of a context, by its number, and a word is; and whether it is there."""
        keys = self._orders[n - 1][0]
        key = before * self.vocab_size + word
        at = torch.searchsorted(keys, key).clamp(max=len(keys) - 1)
        there = keys[at] == key
        return at, there if known is None else there & known


class Fluency(NamedTuple):
    """What a language model, if there is one, adds to the scores of a search."""

    lm: LanguageModel | None = None
    weight: float = 0.0

    def begin(self, like: Tensor) -> Tensor:
        return self.lm.begin(like) if self.lm else like.new_zeros(*like.shape, 0).long()

    def after(self, context: Tensor, word: Tensor) -> Tensor:
        return self.lm.after(context, word) if self.lm else context

    def of(self, context: Tensor, word: Tensor) -> Tensor | float:
        return self.weight * self.lm.log_prob(context, word) if self.lm else 0.0

    def of_end(self, context: Tensor) -> Tensor | float:
        return self.weight * self.lm.end(context) if self.lm else 0.0


def language_model(
    folder: str | None, vocab_size: int, device: torch.device
) -> LanguageModel | None:
    """That of a folder, which is read once; raises UserError if it is of another vocabulary."""
    if folder is None:
        return None
    path = Path(folder)
    changed = path / ARRAYS
    model = _loaded(path, changed.stat().st_mtime_ns if changed.exists() else 0, device)
    check_vocabulary(path, model.vocab_size, vocab_size)
    return model


@lru_cache(maxsize=4)
def _loaded(path: Path, changed: int, device: torch.device) -> LanguageModel:
    return LanguageModel(load_ngrams(path), device)
