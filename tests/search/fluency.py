"""A small language model for searches, and what it says about a whole text."""

from collections.abc import Sequence

import numpy as np
import torch

from oaxe.search.ngrams import LanguageModel
from oaxe.text.corpus import Sentences
from oaxe.text.ngrams import NGrams, estimate
from oaxe.text.symbols import BOS, EOS


def small_ngrams(vocab_size: int = 12, order: int = 3) -> NGrams:
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 6, 40)
    tokens = rng.integers(8, min(vocab_size, 12), lengths.sum())
    return estimate(Sentences(tokens, np.cumsum([0, *lengths])), vocab_size, order)


def small_lm() -> LanguageModel:
    return LanguageModel(small_ngrams())


def fluency_of(lm: LanguageModel, text: Sequence[int]) -> float:
    """Log-probability of a text with its end, word by word."""
    words, total = [BOS] * (lm.order - 1), 0.0
    for word in (*text, EOS):
        context = torch.tensor([words[len(words) - lm.order + 1 :]])
        total += lm.log_prob(context, torch.tensor([word])).item()
        words.append(word)
    return total
