"""Slow, obvious references that share no code with the library."""

from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor


def cheapest_permutation(cost: Tensor) -> float:
    """Least total of an (n, n) matrix, by trying all n! permutations."""
    n = len(cost)
    return min(
        (sum(float(cost[i, p[i]]) for i in range(n)) for p in permutations(range(n))), default=0.0
    )


def oaxe_by_brute_force(
    logits: Tensor,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    truncation: float,
    weight: Tensor | None = None,
) -> Tensor:
    """Differentiable sum over the batch: F.cross_entropy on the best of all orders."""
    total = logits.new_zeros(())
    for sentence, words in zip(logits, target, strict=True):
        positions = [i for i, word in enumerate(words.tolist()) if word != ignore_index]
        rows = sentence[positions]  # (n, vocab)
        orders = torch.tensor(list(permutations(words[positions].tolist())), dtype=torch.long)
        log_probs = rows.detach().log_softmax(-1)[torch.arange(len(positions)), orders]  # (n!, n)
        if weight is not None:
            log_probs = weight[orders] * log_probs
        best = orders[log_probs.sum(1).argmax()]
        for row, word in zip(rows, best, strict=True):
            if float(row.detach().softmax(-1)[word]) > truncation:
                total = total + F.cross_entropy(
                    row, word, weight, label_smoothing=label_smoothing, reduction="sum"
                )
    return total


def all_monotone_alignments(n: int, m: int) -> list[list[tuple[str, int, int]]]:
    """Every path from (0, 0) to (n, m) as a list of (move, target, prediction), 1-based."""
    if n == 0 and m == 0:
        return [[]]
    paths = []
    if n > 0 and m > 0:
        paths += [[*p, ("align", n, m)] for p in all_monotone_alignments(n - 1, m - 1)]
    if m > 0:
        paths += [[*p, ("skip prediction", n, m)] for p in all_monotone_alignments(n, m - 1)]
    if n > 0:
        paths += [[*p, ("skip target", n, max(m, 1))] for p in all_monotone_alignments(n - 1, m)]
    return paths


def axe_by_brute_force(logits: Tensor, target: Tensor, blank: int, delta: float) -> Tensor:
    """Differentiable loss of one sentence: (m, vocab) logits, (n,) target."""
    log_probs = logits.log_softmax(-1)
    totals = []
    for path in all_monotone_alignments(len(target), len(logits)):
        total = logits.new_zeros(())
        for move, i, j in path:
            token = blank if move == "skip prediction" else int(target[i - 1])
            weight = delta if move == "skip target" else 1.0
            total = total - weight * log_probs[j - 1, token]
        totals.append(total)
    return torch.stack(totals).min()
