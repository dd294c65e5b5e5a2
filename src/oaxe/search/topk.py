"""Of very many numbers, such as logits over a vocabulary: the few largest, and the logsumexp."""

import torch
from torch import Tensor

try:
    from oaxe.losses.kernels import softmax as kernel
except ImportError:  # no Triton
    kernel = None  # type: ignore[assignment]

CHUNK = 64


def largest(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """As ``x.topk(n)``: the n largest of the last axis, in order, and where they are.

    They are all in the n chunks with the largest maxima: a GPU reads x once, to find these.

    Example:
        >>> largest(torch.tensor([3.0, 1.0, 4.0, 1.5]), 2)
        (tensor([4., 3.]), tensor([2, 0]))
    """
    n_chunks = x.shape[-1] // CHUNK
    if n_chunks <= (n if x.is_cuda else 16 * n):
        values, index = x.topk(n)
        return values, index
    whole = n_chunks * CHUNK
    chunks = x[..., :whole].view(*x.shape[:-1], n_chunks, CHUNK)
    best = chunks.amax(-1).topk(n).indices.unsqueeze(-1)  # (..., n, 1)
    some = chunks.gather(-2, best.expand(*best.shape[:-1], CHUNK)).flatten(-2)
    where = (best * CHUNK + torch.arange(CHUNK, device=x.device)).flatten(-2)
    if whole < x.shape[-1]:
        rest = torch.arange(whole, x.shape[-1], device=x.device)
        some = torch.cat([some, x[..., whole:]], -1)
        where = torch.cat([where, rest.expand(*x.shape[:-1], -1)], -1)
    values, index = some.topk(n)
    return values, where.gather(-1, index)


def logsumexp(x: Tensor) -> Tensor:
    """Of the last axis, in float32 whatever x has; a GPU reads x once.

    Example:
        >>> logsumexp(torch.tensor([[0.0, 0.0]]))
        tensor([0.6931])
    """
    if kernel is not None and x.is_cuda and x.dtype != torch.float64:
        return kernel.logsumexp(x.flatten(0, -2)).view(x.shape[:-1])
    return x.float().logsumexp(-1)
