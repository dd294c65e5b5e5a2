"""What is left to do when the passes are computed, in numpy: lengths, repeats and blanks, paths.

The same as :mod:`oaxe.search` does on tensors.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from oaxe.search.ctc_beam_cpu import Labels
from oaxe.search.hypothesis import Hypothesis, Positions
from oaxe.text.symbols import BLANK, BOS, EOS, MASK, PAD

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

MOST_RATIO = 2  # words of a path, with EOS, for each token of its source


def padded(rows: Sequence[Sequence[int]]) -> Ints:
    """``(rows, longest)``, PAD on the right.

    Example:
        >>> padded([[8, 2], [2]]).tolist()
        [[8, 2], [2, 0]]
    """
    out = np.full((len(rows), max(map(len, rows))), PAD)
    for row, tokens in zip(out, rows, strict=True):
        row[: len(tokens)] = tokens
    return out


def from_end(mask: Bools) -> Ints:
    """0 for the last real token of a row, 1 for the one before; 0 for padding."""
    positions: Ints = mask.sum(1, keepdims=True) - 1 - np.arange(mask.shape[1])
    return positions.clip(min=0)


def likely_lengths(logits: Floats, n_tokens: Ints, candidates: int, share: float) -> list[Ints]:
    """Of each sentence the most likely lengths, likeliest first; see :mod:`oaxe.model.length`.

    Args:
        logits: ``(batch, max_length + 1)``.
        n_tokens: ``(batch,)``: tokens of each source without LENGTH and EOS.
        candidates: at most so many.
        share: only those of at least this share of the likeliest one's probability.
    """
    longest = 2 * n_tokens[:, None] + 10
    length = np.arange(1, logits.shape[1])  # class 0 would be a sentence without words
    possible = np.where(length <= longest, logits[:, 1:], -np.inf)
    best = np.argsort(-possible, 1, kind="stable")[:, :candidates]
    lengths = np.minimum(best + 1, longest)
    values = np.take_along_axis(logits, lengths, 1)
    kept = values >= values[:, :1] + (np.log(share) if share else -np.inf)
    return [row[: keep.sum()] for row, keep in zip(lengths, kept, strict=True)]


def least_likely(log_probs: Floats, mask: Bools, number: Ints) -> Bools:
    """``(rows, length)``: the ``number (rows,)`` real positions of lowest log-probability."""
    order = np.where(mask, log_probs, 1.0).argsort(1, kind="stable")  # padding last
    found: Bools = order.argsort(1) < number[:, None]
    return found


def differs_from_previous(tokens: Ints) -> Bools:
    """``(rows, length)``: False for a token that repeats the one before it."""
    differs = np.ones(tokens.shape, dtype=np.bool_)
    differs[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    return differs


def collapsed(labels: Labels, lengths: Ints, bonus: float) -> list[list[Hypothesis]]:
    """CTC: the likeliest label of each position, repeats collapsed, then blanks removed.

    Args:
        labels: of all sentences, one behind the other, with the likeliest word of each position.
        lengths: ``(sentences,)``: positions.
        bonus: what a word has before a blank.
    """
    words, log_probs, blanks = labels.words[:, 0], labels.log_probs[:, 0], labels.blanks
    says = log_probs + np.float32(bonus) > blanks
    tokens, log_probs = np.where(says, words, BLANK), np.where(says, log_probs, blanks)
    ends = lengths.cumsum()
    begins = ends - lengths
    keep = differs_from_previous(tokens[None])[0]
    keep[begins] = True
    keep &= says
    totals = np.add.reduceat(log_probs, begins, dtype=np.float64).tolist()
    parts = (np.split(of, begins[1:]) for of in (tokens, log_probs, keep))
    found = []
    for row, log_prob, kept, total in zip(*parts, totals, strict=True):
        said = Positions(row, log_prob, kept.nonzero()[0])
        found.append([Hypothesis(row[kept].tolist(), total / len(row), len(row), total, said)])
    return found


def graph_inputs(source: Ints, factor: int) -> Ints:
    """What the decoder of a DAG reads at each vertex: BOS first, EOS last, else MASK.

    Example:
        >>> graph_inputs(np.array([[8, EOS], [EOS, PAD]]), 2).tolist()
        [[1, 4, 4, 2], [1, 2, 0, 0]]
    """
    last = factor * (source != PAD).sum(1, keepdims=True) - 1
    vertex = np.arange(factor * source.shape[1])
    inputs = np.where(vertex < last, MASK, np.where(vertex == last, EOS, PAD))
    inputs[:, 0] = BOS
    return inputs


def viterbi(
    words: Ints, log_probs: Floats, links: Floats, last: Ints, limit: Ints, length_penalty: float
) -> list[Hypothesis]:
    """The path of the highest score of each graph; see :func:`oaxe.systems.dag.viterbi`.

    Args:
        words, log_probs: ``(batch, vertices)``: the likeliest word of each vertex.
        links: ``(batch, vertices, vertices)``: log-probabilities, -inf where there is none.
        last: ``(batch,)``: the last vertex.
        limit: ``(batch,)``: the most words, with EOS.
    """
    batch, n = words.shape
    row = np.arange(batch)
    n_steps = min(int(limit.max()), n - 1)
    best = np.full((batch, n), -np.inf, np.float32)
    best[:, 0] = 0.0
    into = np.ascontiguousarray(links.transpose(0, 2, 1))  # (batch, to, from)
    origins = np.empty((n_steps, batch, n), np.int32)
    totals = np.empty((batch, n_steps), np.float32)
    for step in range(n_steps):
        through = into + best[:, None]
        origins[step] = through.argmax(2)
        arrived = np.take_along_axis(through, origins[step, :, :, None], 2)[:, :, 0]
        totals[:, step] = arrived[row, last]
        best = arrived + log_probs
    steps = np.arange(1, n_steps + 1)
    scores = totals / (steps**length_penalty).astype(np.float32)
    scores[steps > limit[:, None]] = -np.inf
    chosen = scores.argmax(1)
    found = []
    for b in range(batch):
        path, vertex = list[int](), int(last[b])
        for step in range(chosen[b], 0, -1):
            vertex = int(origins[step, b, vertex])
            path.append(vertex)
        total = float(totals[b, chosen[b]])
        score, n_words = float(scores[b, chosen[b]]), int(chosen[b])
        path.reverse()
        said = between_ends(words[b], log_probs[b], last[b], path, path)
        found.append(Hypothesis(words[b, path].tolist(), score, n_words + 1, total, said))
    return found


def step_by_step(
    words: Ints, log_probs: Floats, links: Floats, last: Ints, weight: float, length_penalty: float
) -> list[Hypothesis]:
    """Always to the vertex of the likeliest link and, by its weight, word; repeats removed."""
    following = (links + np.float32(weight) * log_probs[:, None]).argmax(2)
    found = []
    for b, end in enumerate(last):
        path, kept, vertex, total, length = list[int](), list[int](), 0, 0.0, 0
        while vertex != end:
            after = int(following[b, vertex])
            total += float(links[b, vertex, after] + log_probs[b, after])
            vertex, length = after, length + 1
            if vertex != end:
                path.append(vertex)
                if not kept or words[b, kept[-1]] != words[b, vertex]:
                    kept.append(vertex)
        score = total / length**length_penalty
        said = between_ends(words[b], log_probs[b], end, kept, path)
        found.append(Hypothesis(words[b, kept].tolist(), score, length, total, said))
    return found


def between_ends(
    words: Ints, log_probs: Floats, last: int, kept: Sequence[int], path: Sequence[int]
) -> Positions:
    """Of one graph, whose first and last vertex say nothing."""
    kept, path = ([vertex - 1 for vertex in some] for some in (kept, path))
    return Positions(words[1:last], log_probs[1:last], kept, path)
