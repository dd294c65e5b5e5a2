"""Minimum Bayes risk: of translations that were drawn at random, the one most like all others.

How alike two of them are is their n-gram F, the harmonic mean of precision and recall, as a mean
over n from 1 to 4: near to what BLEU measures, and the same in both directions.
"""

import torch
from torch import Tensor

from oaxe.losses.arguments import leading
from oaxe.search.one_pass import numbered
from oaxe.search.replay import Tensors

LONGEST = 4  # n-grams
FACTOR = 6_364_136_223_846_793_005  # of codes: n-grams that differ have different ones, in effect
SEED = 1  # the same input has the same output
TEMPERATURES = (0.3, 0.5, 0.7, 1.0)  # worth trying


def ranked(found: Tensors, batch: int) -> Tensors:
    """The rows of :func:`hypotheses`; their score is the mean likeness to all of a sentence."""
    tokens, n_tokens, _, totals, lengths, *said = found
    alike = likeness(tokens.view(batch, -1, tokens.shape[1]), n_tokens.view(batch, -1))
    return tokens, n_tokens, alike.mean(2).flatten(), totals, lengths, *said


def likeness(tokens: Tensor, lengths: Tensor) -> Tensor:
    """``(batch, samples, samples)``: n-gram F of all pairs, 0 to 1.

    F = 2 matches / (n-grams of one + n-grams of the other), where an n-gram matches as often as
    both have it. It is a mean over those n of which one of the two has any; 1 if both are empty.

    Args:
        tokens: ``(batch, samples, length)``.
        lengths: ``(batch, samples)``: how many of them count.

    Example:
        >>> texts = torch.tensor([[[7, 8, 9], [7, 8, 7]]])
        >>> likeness(texts, torch.tensor([[3, 3]]))[0, 0, 1]  # 2/3 of the words, half of the pairs
        tensor(0.3889)
    """
    batch, samples, longest = tokens.shape
    total = torch.zeros(batch, samples, samples, device=tokens.device)
    number = torch.zeros_like(total)
    codes = torch.zeros_like(tokens)
    for n in range(1, min(LONGEST, longest) + 1):
        codes = codes[:, :, : longest - n + 1] * FACTOR + tokens[:, :, n - 1 :] + 1
        real = leading((lengths - n + 1).flatten(), codes.shape[2]).view_as(codes)
        count = real.sum(2)
        both = count.unsqueeze(2) + count.unsqueeze(1)
        total += torch.where(both > 0, 2 * _matches(codes, real) / both.clamp(min=1), 0.0)
        number += both > 0
    return torch.where(number > 0, total / number.clamp(min=1), 1.0)


def _matches(codes: Tensor, real: Tensor) -> Tensor:
    """``(batch, samples, samples)``: how many codes two samples have in common.

    A code that comes for the second time is another one: of those, both have to have two.
    """
    batch, samples, n = codes.shape
    same = (codes.unsqueeze(3) == codes.unsqueeze(2)) & real.unsqueeze(2)
    codes = (codes * FACTOR + same.tril().sum(3)).masked_fill(~real, 0)
    column = numbered(codes.flatten(1))[1].view(batch, samples, n)
    has = torch.zeros(batch, samples, samples * n, device=codes.device)
    has = has.scatter(2, column, real.float())
    return has @ has.transpose(1, 2)


def generator_of(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(SEED)


def drawn_from(scores: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """``(...)``: an index of the last axis, drawn from its softmax at this temperature (Gumbel)."""
    noise = torch.empty_like(scores).exponential_(generator=generator)
    noise = noise.clamp(min=torch.finfo(noise.dtype).tiny).log()
    return (scores / temperature - noise).argmax(-1)
