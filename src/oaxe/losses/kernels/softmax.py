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


def weighted_softmax(
    logits: Tensor, logsumexp: Tensor, factor: Tensor, dtype: torch.dtype
) -> Tensor:
    result = logits if logits.dtype == dtype else torch.empty_like(logits, dtype=dtype)
    with torch.cuda.device_of(logits):
        _weighted_softmax_kernel[(len(logits),)](
            logits, logsumexp, factor, result, *_sizes(logits), num_warps=WARPS
        )
    return result


def cross_entropy(
    logits: Tensor,
    words: Tensor,
    mask: Tensor,
    weight: Tensor | None,
    label_smoothing: float,
    least_probability: float,
    differentiate: bool,
) -> tuple[Tensor, Tensor]:
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    kept = torch.empty_like(mask)
    with torch.cuda.device_of(logits):
        _cross_entropy_kernel[(len(logits),)](
            logits,
            words,
            mask.view(torch.uint8),
            losses if weight is None else weight,
            losses,
            kept.view(torch.uint8),
            label_smoothing,
            least_probability,
            *_sizes(logits),
            weighted=weight is not None,
            differentiate=differentiate,
            num_warps=WARPS,
        )
    return losses, kept


def _sizes(logits: Tensor) -> tuple[int, int]:
    vocab = logits.shape[1]
    return vocab, min(BLOCK, max(128, triton.next_power_of_2(vocab)))


@triton.jit
def _logsumexp_kernel(logits, result, vocab, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    tl.store(result + row, _logsumexp(logits, vocab, block))


@triton.jit
def _weighted_softmax_kernel(logits, logsumexp, factor, result, vocab, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    result += row.to(tl.int64) * vocab
    factor = tl.load(factor + row)
    _differentiate(
        logits, result, vocab, tl.load(logsumexp + row), factor != 0, factor, 0.0, logits, False,
        block,
    )  # fmt: skip


@triton.jit(do_not_specialize=["label_smoothing", "least_probability"])
def _cross_entropy_kernel(
    logits,  # (rows, vocab); overwritten by the gradient, if that is asked for
    words,  # (rows,) int64
    mask,  # (rows,) uint8
    weight,  # (vocab,) float32, if weighted
    losses,  # (rows,) float32
    kept_rows,  # (rows,) uint8
    label_smoothing,
    least_probability,
    vocab,
    block: tl.constexpr,
    weighted: tl.constexpr,
    differentiate: tl.constexpr,
):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    word = tl.load(words + row)
    own = tl.load(logits + word).to(tl.float32)
    own_weight = tl.full([], 1, tl.float32)
    if weighted:
        own_weight = tl.load(weight + word)
    logsumexp = _logsumexp(logits, vocab, block)
    probability = tl.exp(own - logsumexp)
    too_little = probability <= least_probability  # NaN is kept, and seen
    kept = (tl.load(mask + row) != 0) & (too_little == 0)
    certain = (1 - label_smoothing) * own_weight
    factor = own_weight  # of the softmax in the gradient
    loss = own_weight * (logsumexp - own)
    if label_smoothing > 0:  # or else the mean may be -inf
        mean_weight, mean_logit = _means(logits, weight, vocab, weighted, block)
        uniform_loss = mean_weight * logsumexp - mean_logit
        loss = (1 - label_smoothing) * loss + label_smoothing * uniform_loss
        factor = certain + label_smoothing * mean_weight
    loss = tl.where(loss < 0, 0.0, loss)  # by rounding
    tl.store(losses + row, tl.where(kept, loss, 0.0))
    tl.store(kept_rows + row, kept.to(tl.uint8))
    if differentiate:
        tl.debug_barrier()  # all have read the row
        uniform = label_smoothing / vocab
        _differentiate(
            logits, logits, vocab, logsumexp, kept, factor, uniform, weight, weighted, block
        )
        tl.debug_barrier()  # all have written it
        own = factor * probability - certain - uniform * own_weight
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
def _means(logits, weight, vocab, weighted: tl.constexpr, block: tl.constexpr):
    """Of the class weights, and of the weighted logits."""
    total = tl.zeros([block], tl.float32)
    weights = tl.zeros([block], tl.float32)
    for first in range(0, vocab, block):
        v = first + tl.arange(0, block)
        x = tl.load(logits + v, v < vocab, 0).to(tl.float32)
        if weighted:
            w = tl.load(weight + v, v < vocab, 0)
            x *= w
            weights += w
        total += x
    mean_weight = tl.full([], 1, tl.float32)
    if weighted:
        mean_weight = tl.sum(weights, 0) / vocab
    return mean_weight, tl.sum(total, 0) / vocab


@triton.jit
def _differentiate(
    logits,
    result,
    vocab,
    logsumexp,
    kept,
    factor,
    uniform,
    weight,
    weighted: tl.constexpr,
    block: tl.constexpr,
):
    """factor * softmax - uniform * weight; a row that is not kept may hold NaN: 0."""
    for first in range(0, vocab, block):
        v = first + tl.arange(0, block)
        gradient = tl.zeros([block], tl.float32)
        if kept:
            x = tl.load(logits + v, v < vocab, float("-inf")).to(tl.float32)
            subtracted = uniform
            if weighted:
                subtracted = uniform * tl.load(weight + v, v < vocab, 0)
            gradient = factor * _exp(x - logsumexp) - subtracted
        tl.store(result + v, gradient.to(result.dtype.element_ty), v < vocab)


@triton.jit
def _exp(x):
    """One instruction more than a power of two; ``tl.exp`` takes four, for denormal results."""
    return tl.exp2(x * 1.4426950408889634)
