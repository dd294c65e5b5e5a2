"""Paths through a graph of vertices, each of which says words: what decoding a DAG looks for.

After the one pass of the network: the likeliest path and its words, by length (joint Viterbi of
Shao et al., 2022), one that goes step by step to the likeliest vertex, or several at random.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from oaxe.search.consensus import drawn_from
from oaxe.search.one_pass import compact, differs_from_previous
from oaxe.search.replay import Tensors


class Graph(NamedTuple):
    """What decoding looks for a path in."""

    words: Tensor  # (batch, vertices, n): the likeliest n of each vertex, in order
    log_probs: Tensor  # (batch, vertices, n): theirs; 0 for the first and the last, and for padding
    links: Tensor  # (batch, vertices, vertices): log-probabilities; -inf where there is none
    last: Tensor  # (batch, 1): the last vertex
    limit: Tensor  # (batch, 1): the most words, with EOS
    steps: int  # no limit is higher


def viterbi(graph: Graph, length_penalty: float) -> Tensors:
    """The path of the highest score: log-probability of links and words over a power of length.

    Its best beginnings of n words end at each vertex; for each n, one more link ends the path.
    """
    words, log_probs = graph.words[:, :, 0], graph.log_probs[:, :, 0]
    vertex = torch.arange(words.shape[1], device=words.device)
    best = torch.where(vertex == 0, 0.0, -torch.inf).expand_as(log_probs)
    origins, ends = [], []
    for _ in range(graph.steps):
        arrived, origin = (best.unsqueeze(2) + graph.links).max(1)
        origins.append(origin)
        ends.append(arrived.gather(1, graph.last))
        best = arrived + log_probs
    totals = torch.cat(ends, 1)  # (batch, steps)
    steps = torch.arange(1, graph.steps + 1, device=words.device)
    scores = (totals / steps**length_penalty).masked_fill(steps > graph.limit, -torch.inf)
    score, chosen = scores.max(1, keepdim=True)
    vertices, state = [], graph.last
    for step in range(graph.steps - 1, -1, -1):
        state = torch.where(step <= chosen, origins[step].gather(1, state), state)
        vertices.append(state)
    path = torch.cat(vertices[::-1], 1)[:, 1:]  # the first is vertex 0
    total = totals.gather(1, chosen).squeeze(1)
    n_words = chosen.squeeze(1)
    # The first and the last vertex say nothing.
    said = words[:, 1:], log_probs[:, 1:], graph.last.squeeze(1) - 1, path - 1
    return words.gather(1, path), n_words, score.squeeze(1), total, n_words + 1, *said


def sampled_paths(graph: Graph, temperature: float, generator: torch.Generator) -> Tensors:
    """Paths that are drawn at random, as many as the graph has words of a vertex.

    The words are drawn already: those of the first path, of the second, and so on. Where a path is
    longer than the limit it is cut.
    """
    words, log_probs, links, last, limit, steps = graph
    batch, n_vertices, n = words.shape
    vertex = torch.zeros(batch, n, dtype=torch.int64, device=words.device)
    total = log_probs.new_zeros(batch, n)
    tokens = []
    for _ in range(steps):
        rows = links.gather(1, vertex.unsqueeze(2).expand(-1, -1, n_vertices))  # (batch, n, ...)
        after = drawn_from(rows, temperature, generator)
        arrived = vertex == last
        after = torch.where(arrived, vertex, after)
        said = log_probs.gather(1, after.unsqueeze(1)).squeeze(1)
        link = rows.gather(2, after.unsqueeze(2)).squeeze(2)
        total = total + torch.where(arrived, 0.0, link + said * (after != last))
        tokens.append(torch.where(after == last, 0, words.gather(1, after.unsqueeze(1)).squeeze(1)))
        vertex = after
    found = torch.stack(tokens, 2)  # (batch, n, steps): 0 behind the end
    n_words = torch.minimum((found != 0).sum(2), limit - 1).flatten()
    return found.flatten(0, 1), n_words, total.flatten(), total.flatten(), n_words + 1


def step_by_step(graph: Graph, weight: float, length_penalty: float) -> Tensors:
    """The path to the vertex of the likeliest link and, by its weight, word; repeats removed."""
    words, log_probs, links, last = *(x[:, :, 0] for x in graph[:2]), graph.links, graph.last
    following = (links + weight * log_probs.unsqueeze(1)).argmax(2)
    vertex = torch.zeros_like(last)
    total = log_probs.new_zeros(last.shape)
    path = []
    for _ in range(words.shape[1] - 1):
        arrived, after = vertex == last, following.gather(1, vertex)
        after = torch.where(arrived, vertex, after)
        link = links.flatten(1).gather(1, vertex * words.shape[1] + after)
        total = total + torch.where(arrived, 0.0, link + log_probs.gather(1, after))
        path.append(after)
        vertex = after
    vertices = torch.cat(path, 1)
    said = vertices != last
    tokens = words.gather(1, vertices)
    length, total = said.sum(1) + 1, total.squeeze(1)
    tokens, keep = compact(tokens, said & differs_from_previous(tokens))
    return tokens, keep.sum(1), total / length**length_penalty, total, length
