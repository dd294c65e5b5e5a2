"""The best sequence where each word is one of a few, and neighbours have something to say."""

import torch
from torch import Tensor


def viterbi(scores: Tensor, between: Tensor, mask: Tensor) -> Tensor:
    r"""Which candidate to take at each position, ``(rows, length)``; 0 after the end.

    .. math:: \arg\max_c \sum_t s_t(c_t) + \sum_t b_t(c_t, c_{t+1})

    Nothing waits for the device, so that a CUDA graph can hold it.

    Args:
        scores: s, ``(rows, length, n)``: of each of the n candidates.
        between: b, ``(rows, length - 1, n, n)``: of a candidate and one of the next position.
        mask: ``(rows, length)`` bool, True for real positions, which come first.

    Example:
        >>> scores = torch.tensor([[[3.0, 1.0], [2.0, 1.5]]])
        >>> apart = torch.tensor([[[[-9.0, 0.0], [0.0, -9.0]]]])  # equal neighbours cost 9
        >>> viterbi(scores, apart, torch.ones(1, 2, dtype=torch.bool))
        tensor([[0, 1]])
    """
    rows, length, n = scores.shape
    stay = torch.arange(n, device=scores.device).expand(rows, n)
    total, origins = scores[:, 0], []
    for position in range(1, length):
        here = mask[:, position, None]
        best, origin = (total.unsqueeze(2) + between[:, position - 1]).max(1)
        total = torch.where(here, best + scores[:, position], total)
        origins.append(torch.where(here, origin, stay))
    candidate = total.argmax(1, keepdim=True)
    found = [candidate]
    for origin in reversed(origins):
        candidate = origin.gather(1, candidate)
        found.append(candidate)
    return torch.cat(found[::-1], 1) * mask
