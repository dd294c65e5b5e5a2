"""Inputs like those of translation: lengths, words, and costs of a matching."""

import numpy as np
import torch
from torch import Tensor

from oaxe.model.masking import IGNORED
from oaxe.text.corpus import Corpus, Sentences
from oaxe.text.symbols import LENGTH

Problems = list[np.ndarray]  # float32 (n, n) costs, sorted by n


def text_lengths(rng: np.random.Generator, tokens: int) -> list[int]:
    """Sorted sentence lengths in subwords, like news text: mean about 27, few above 100."""
    lengths = np.empty(0, dtype=np.int64)
    while lengths.sum() < tokens:
        drawn = rng.lognormal(mean=np.log(22.5), sigma=0.6, size=tokens // 25 + 1)
        lengths = np.concatenate([lengths, drawn.round().astype(np.int64).clip(1, 200)])
    enough = int(np.searchsorted(lengths.cumsum(), tokens)) + 1
    return sorted(lengths[:enough].tolist())


def sentences_of_like_length(rng: np.random.Generator, positions: int, vocab: int) -> Tensor:
    """Targets of lengths around the median, padded with -100, in about so many positions."""
    lengths = text_lengths(rng, positions * 64)
    middle = int(np.searchsorted(lengths, np.median(lengths)))
    lengths = lengths[middle:][: positions // lengths[middle]]
    target = torch.full((len(lengths), max(lengths)), IGNORED)
    for row, length in zip(target, lengths, strict=True):
        row[:length] = torch.from_numpy(zipf_words(rng, length, vocab))
    return target


def zipf_words(rng: np.random.Generator, n: int, vocab: int) -> np.ndarray:
    frequency = 1 / np.arange(1, vocab + 1)
    return rng.choice(vocab, size=n, p=frequency / frequency.sum())


def random_costs(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(n, n)).astype(np.float32)


def costs_like_a_nat(rng: np.random.Generator, n: int) -> np.ndarray:
    """Negative logits of a half-trained model: vague about neighbours, with repeated words."""
    distance = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
    scores = 2 * rng.normal(size=(n, n)) + 7 * rng.random((n, n)) * np.exp(-distance / 1.5)
    words = zipf_words(rng, n, 8_000)
    _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
    return -scores[:, first[inverse]].astype(np.float32)


def padded(problems: Problems) -> tuple[Tensor, Tensor]:
    """One batch: costs ``(batch, longest, longest)`` and mask ``(batch, longest)``."""
    lengths = torch.tensor([len(problem) for problem in problems])
    longest = int(lengths.max())
    cost = torch.zeros(len(problems), longest, longest)
    for row, problem in zip(cost, problems, strict=True):
        row[: len(problem), : len(problem)] = torch.from_numpy(problem)
    return cost, torch.arange(longest) < lengths.unsqueeze(1)


def matched_cost(cost: Tensor, mask: Tensor, column: Tensor) -> float:
    """The total of a matching of padded problems, in float64."""
    matched = cost.double().gather(2, column.unsqueeze(2)).squeeze(2)
    return float(torch.where(mask, matched, 0).sum())


def corpus_like_news(rng: np.random.Generator, tokens: int, vocab: int) -> Corpus:
    """So many target tokens, or a few more."""
    target = rng.permutation(text_lengths(rng, tokens))
    source = (target * rng.lognormal(sigma=0.15, size=len(target))).round().astype(np.int64)
    sides: list[Sentences] = []
    for lengths in (source.clip(1, 200), target):
        words = LENGTH + 1 + zipf_words(rng, int(lengths.sum()), vocab - LENGTH - 1)
        offsets = np.concatenate([[0], lengths.cumsum()])
        sides.append(Sentences(words.astype(np.int32), offsets))
    return Corpus(sides[0], sides[1])
