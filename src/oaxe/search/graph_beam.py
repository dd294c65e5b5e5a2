"""Beam search over what a graph says: the probability of a translation is that of all its paths.

As Huang et al. (2022) decode with a beam, but here for many sentences at once. A prefix of words
ends at each vertex with some probability. One more link leads on to other vertices, whose words
extend it: the same word at several vertices is one extension, to which all of them add.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from oaxe.search.graph import Graph
from oaxe.search.graph_beam_cpu import ASKED, LEAST_LINK
from oaxe.search.ngrams import Fluency
from oaxe.search.one_pass import numbered
from oaxe.search.replay import Tensors

NO_LM = Fluency()


class Beam(NamedTuple):
    """The prefixes that are followed: all of the same length, all different."""

    total: Tensor  # (batch, beam): log-probability of each prefix
    fluency: Tensor  # (batch, beam): what a language model adds to it
    context: Tensor  # (batch, beam, n): the last words, for that
    share: Tensor  # (batch, beam, vertices): of that probability, where the prefix ends
    words: Tensor  # (batch, beam, steps)


class Finished(NamedTuple):
    """The best hypotheses so far."""

    score: Tensor  # (batch, n)
    total: Tensor  # (batch, n): log-probability
    length: Tensor  # (batch, n): words, with EOS
    words: Tensor  # (batch, n, steps)


def prefix_beam(
    graph: Graph, *, beam: int, length_penalty: float, fluency: Fluency = NO_LM
) -> Tensors:
    """Up to ``beam`` translations of each sentence, of the highest score that was found.

    A translation Y of n words, EOS included, has the score log P(Y) / n^length_penalty, where P
    adds up all paths that say Y; a language model adds its weighted log-probability to log P(Y).
    Words are those of the graph alone. With a beam that is large enough nothing is left out.
    """
    vertex = torch.arange(graph.words.shape[1], device=graph.words.device)
    says = (vertex > 0) & (vertex < graph.last)  # (batch, vertices)
    # Nothing is said by the first vertex, the last one, and padding.
    probs = graph.log_probs.exp().to(graph.links.dtype) * says.unsqueeze(2)
    links = torch.where(graph.links == -torch.inf, 0.0, graph.links.clamp(min=LEAST_LINK).exp())
    words, number = numbered(graph.words.flatten(1))
    prefixes = _begin(graph, fluency)
    finished = None
    for step in range(graph.steps):
        with torch.autocast(links.device.type, enabled=False):  # it would round
            share = prefixes.share @ links  # (batch, beam, vertices)
        finished = _finish(graph, prefixes, share, finished, step, beam, length_penalty, fluency)
        if step + 1 < graph.steps:
            prefixes = _extend(prefixes, share, probs, words, number, step, beam, fluency)
    assert finished is not None  # there is one step at least
    score, total, length, said = (part.flatten(0, 1) for part in finished)
    return said, length - 1, score, total, length


def _begin(graph: Graph, fluency: Fluency) -> Beam:
    """One prefix without words, at the first vertex."""
    batch, n_vertices, _ = graph.words.shape
    share = graph.links.new_zeros(batch, 1, n_vertices)
    share[:, :, 0] = 1.0
    words = graph.words.new_zeros(batch, 1, graph.steps)
    certain = share.new_zeros(batch, 1)
    return Beam(certain, certain, fluency.begin(certain), share, words)


def _finish(
    graph: Graph,
    prefixes: Beam,
    share: Tensor,
    before: Finished | None,
    step: int,
    beam: int,
    length_penalty: float,
    fluency: Fluency,
) -> Finished:
    """The prefixes from which a link leads to the last vertex, and the best of before."""
    end = graph.last.unsqueeze(1).expand(-1, share.shape[1], -1)
    total = prefixes.total + share.gather(2, end).squeeze(2).log()
    length = step + 1
    score = total + prefixes.fluency + fluency.of_end(prefixes.context)
    score = (score / length**length_penalty).masked_fill(length > graph.limit, -torch.inf)
    lengths = torch.full_like(graph.last, length).expand_as(total)
    new = Finished(score, total, lengths, prefixes.words)
    if before is None:
        return new
    both = [torch.cat(parts, 1) for parts in zip(before, new, strict=True)]
    best = both[0].topk(min(beam, both[0].shape[1])).indices
    return Finished(*(taken(part, best) for part in both))


def _extend(
    prefixes: Beam,
    share: Tensor,
    probs: Tensor,
    words: Tensor,
    number: Tensor,
    step: int,
    beam: int,
    fluency: Fluency,
) -> Beam:
    """The best prefixes of one more word, ``share`` being where the present ones lead to."""
    batch, _n_prefixes, n_vertices = share.shape
    said = (share.unsqueeze(3) * probs.unsqueeze(1)).flatten(2)  # (batch, beam, vertices * n)
    at = number.unsqueeze(1).expand_as(said)
    log_probs = torch.zeros_like(said).scatter_add(2, at, said).log() + prefixes.total.unsqueeze(2)
    rank = (log_probs + prefixes.fluency.unsqueeze(2)).flatten(1)
    n = beam * (ASKED if fluency.lm else 1)
    rank, index = rank.topk(min(n, rank.shape[1]))
    origin, chosen = index // at.shape[2], index % at.shape[2]  # (batch, n)
    if fluency.lm:
        new = fluency.of(taken(prefixes.context, origin), words.gather(1, chosen))
        best = (rank + new).topk(min(beam, rank.shape[1])).indices
        index, origin, chosen = (x.gather(1, best) for x in (index, origin, chosen))
    word = words.gather(1, chosen)
    context = taken(prefixes.context, origin)
    says = number.view(batch, 1, n_vertices, -1) == chosen.view(batch, -1, 1, 1)
    share = taken(share, origin) * (probs.unsqueeze(1) * says).sum(3)
    share = share / share.sum(2, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
    text = taken(prefixes.words, origin)
    text[:, :, step] = word
    return Beam(
        log_probs.flatten(1).gather(1, index),
        prefixes.fluency.gather(1, origin) + fluency.of(context, word),
        fluency.after(context, word),
        share,
        text,
    )


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """``x (batch, n, ...)`` at ``rows (batch, m)``: ``(batch, m, ...)``."""
    if x.dim() == 2:
        return x.gather(1, rows)
    return x.gather(1, rows.unsqueeze(2).expand(-1, -1, x.shape[2]))
