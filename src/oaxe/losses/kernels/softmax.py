"""Rows of logits on the GPU: one program a row. See :mod:`oaxe.losses.softmax_rows`.

A row is read for its logsumexp and again for its gradient; the second time it comes from the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # logits that a program holds at a time
WARPS = 16


def logsumexp(logits: Tensor) -> Tensor:
    result = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):
        _logsumexp_kernel[(len(logits),)](logits, result, *_sizes(logits), num_warps=WARPS)
    return result


def weigh_softmax(logits: Tensor, logsumexp: Tensor, weight: Tensor) -> None:
    with torch.cuda.device_of(logits):
        _weigh_kernel[(len(logits),)](logits, logsumexp, weight, *_sizes(logits), num_warps=WARPS)


def cross_entropy(
    logits: Tensor,
    words: Tensor,
    counts: Tensor,
    label_smoothing: float,
    least_probability: float,
    differentiate: bool,
) -> Tensor:
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):
        _cross_entropy_kernel[(len(logits),)](
            logits,
            words,
            counts.view(torch.uint8),
            losses,
            label_smoothing,
            least_probability,
            *_sizes(logits),
            differentiate=differentiate,
            num_warps=WARPS,
        )
    return losses


def _sizes(logits: Tensor) -> tuple[int, int]:
    vocab = logits.shape[1]
    return vocab, min(BLOCK, max(128, triton.next_power_of_2(vocab)))


@triton.jit
def _logsumexp_kernel(logits, result, vocab, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    tl.store(result + row, _logsumexp(logits, vocab, block))


@triton.jit
def _weigh_kernel(logits, logsumexp, weight, vocab, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    _differentiate(logits, vocab, tl.load(logsumexp + row), tl.load(weight + row), 0.0, block)


@triton.jit(do_not_specialize=["label_smoothing", "least_probability"])
def _cross_entropy_kernel(
    logits,  # (rows, vocab); overwritten by the gradient, if that is asked for
    words,  # (rows,) int64
    counts,  # (rows,) uint8
    losses,  # (rows,) float32
    label_smoothing,
    least_probability,
    vocab,
    block: tl.constexpr,
    differentiate: tl.constexpr,
):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    word = tl.load(words + row)
    own = tl.load(logits + word).to(tl.float32)
    logsumexp = _logsumexp(logits, vocab, block)
    probability = tl.exp(own - logsumexp)
    too_little = probability <= least_probability  # NaN is kept, and seen
    kept = (tl.load(counts + row) != 0) & (too_little == 0)
    loss = logsumexp - own
    if label_smoothing > 0:  # or else the mean may be -inf
        loss += label_smoothing * (own - _mean(logits, vocab, block))
    tl.store(losses + row, tl.where(kept, loss, 0.0))
    if differentiate:
        tl.debug_barrier()  # all have read the row
        uniform = label_smoothing / vocab
        _differentiate(logits, vocab, logsumexp, kept.to(tl.float32), uniform, block)
        tl.debug_barrier()  # all have written it
        own = probability - (1 - label_smoothing) - uniform
        tl.store(logits + word, own.to(logits.dtype.element_ty), kept)


@triton.jit
def _logsumexp(logits, vocab, block: tl.constexpr):
    most = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0, tl.float32)  # of exp(logit - most)
    for first in range(0, vocab, block):
        v = first + tl.arange(0, block)
        x = tl.load(logits + v, v < vocab, float("-inf")).to(tl.float32)
        before = most
        most = tl.maximum(before, tl.max(x, 0))
        shift = tl.where(most == float("-inf"), 0.0, most)  # so far, all of them are -inf
        total = total * _exp(before - shift) + tl.sum(_exp(x - shift), 0)
    return most + tl.log(total)


@triton.jit
def _mean(logits, vocab, block: tl.constexpr):
    total = tl.zeros([block], tl.float32)
    for first in range(0, vocab, block):
        v = first + tl.arange(0, block)
        total += tl.load(logits + v, v < vocab, 0).to(tl.float32)
    return tl.sum(total, 0) / vocab


@triton.jit
def _differentiate(logits, vocab, logsumexp, weight, uniform, block: tl.constexpr):
    """Overwrite a row by weight * softmax - uniform; where weight is 0, it may hold NaN: by 0."""
    for first in range(0, vocab, block):
        v = first + tl.arange(0, block)
        if weight == 0:
            gradient = tl.zeros([block], tl.float32)
        else:
            x = tl.load(logits + v, v < vocab, float("-inf")).to(tl.float32)
            gradient = weight * _exp(x - logsumexp) - uniform
        tl.store(logits + v, gradient.to(logits.dtype.element_ty), v < vocab)


@triton.jit
def _exp(x):
    """One instruction more than a power of two; ``tl.exp`` takes four, for denormal results."""
    return tl.exp2(x * 1.4426950408889634)
