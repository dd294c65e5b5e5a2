"""Softmax of a linear layer whose logits are never stored: computed in chunks of tokens.

Two operators over ``hidden (tokens, dim)`` and ``embedding (vocab, dim)``: the logsumexp, and the
sum of cross entropies. Each chunk of logits is one matrix product; what follows, row by row, is
plain PyTorch on the CPU (the reference) and one Triton kernel on a GPU; the gradients are two more
products.

The cross entropy finds its gradients on the way forward, since all that they lack is one factor:
3 products of 2 * tokens * vocab * dim operations instead of 4. For 131,072 tokens, 32,000 words
and dim 512 that is 12.9 TFLOP, 16 ms at 790 TFLOP/s. In bfloat16 the logits are 8.4 GB; they are
written once, read and overwritten by the row kernel and read twice, of which the row kernel's two
passes (4 ms at 4.2 TB/s) are not hidden behind arithmetic.

In half precision the cross entropy takes a word's logit from the same rounded logits as their
logsumexp, so it is never negative. The logsumexp alone is compared with logits that were computed
elsewhere: there the logits of a chunk are float32, products of half precision that are not rounded.
A token's loss in bfloat16 is then off by 1e-6 instead of 2e-2 (4,000 words, dim 256), and
linear_axe_loss of the sizes above takes 44 ms instead of 36 on an H200.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses import softmax_rows
from oaxe.losses.arguments import (
    Targets,
    at_least_float32,
    check_devices,
    check_tensors,
    is_float,
    no_second_derivative,
    triton_kernels,
    unrounded,
)
from oaxe.losses.rows import rows_of

CHUNK_BYTES = {"cpu": 2**24, "cuda": 2**29}  # of logits at a time


class Layer(NamedTuple):
    """A linear layer and its input: what F.linear takes."""

    hidden: Tensor  # (..., dim)
    embedding: Tensor  # (vocab, dim)
    bias: Tensor | None  # (vocab,)

    @property
    def stand_in(self) -> Tensor:
        """Of the shape and dtype of its logits, for checks; it takes no memory."""
        if self.hidden.dim() != 3:
            raise ValueError(f"input must be (batch, length, dim), got {tuple(self.hidden.shape)}")
        one = self.hidden.detach().new_empty(1, 1, 1)
        return one.expand(*self.hidden.shape[:2], len(self.embedding))


def as_linear_would(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None) -> Layer:
    """Check the shapes, and cast as F.linear does under autocast."""
    check_tensors(input=input, linear_weight=linear_weight)
    vocab, dim = linear_weight.shape if linear_weight.dim() == 2 else (-1, -1)
    if input.dim() == 0 or input.shape[-1] != dim or not is_float(input):
        raise ValueError(
            "input must be floating point (..., dim) and linear_weight (vocab, dim), "
            f"got {input.dtype} of shape {tuple(input.shape)} and {tuple(linear_weight.shape)}"
        )
    check_devices("hidden states", input, linear_weight=linear_weight)
    if linear_bias is not None:
        check_tensors(linear_bias=linear_bias)
        check_devices("hidden states", input, linear_bias=linear_bias)
        if linear_bias.shape != (vocab,):
            raise ValueError(
                f"linear_bias must be of shape ({vocab},), got {tuple(linear_bias.shape)}"
            )
    kind = input.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        input, linear_weight = input.to(dtype), linear_weight.to(dtype)
    if linear_weight.dtype != input.dtype:
        raise ValueError(
            f"input is {input.dtype}, linear_weight {linear_weight.dtype}; they must be the same, "
            "as autocast makes them"
        )
    return Layer(input, linear_weight, None if linear_bias is None else linear_bias.to(input.dtype))


def linear_logsumexp(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None = None
) -> Tensor:
    r"""The log of the softmax's denominator for each token, without storing its logits.

    .. math:: \log \sum_v \exp(h \cdot E_v + b_v)

    Products of half precision are kept in float32. The gradient computes the logits again, chunk by
    chunk; there is no second derivative.

    Args:
        input: h, ``(..., dim)``.
        linear_weight: E, ``(vocab, dim)``, of the same dtype.
        linear_bias: b, ``(vocab,)``.

    Returns:
        ``(...)``, in float32 or better.

    Example:
        >>> linear_logsumexp(torch.zeros(2, 3), torch.ones(10, 3)).exp()
        tensor([10., 10.])
    """
    return layer_logsumexp(as_linear_would(input, linear_weight, linear_bias))


def layer_logsumexp(
    layer: Layer, mask: Tensor | None = None, capacity: int | None = None
) -> Tensor:
    """``(...)``, in float32 or better, of the layer's logits ``(..., vocab)``.

    With a capacity only where ``mask (...)`` is True, see :func:`layer_cross_entropy`; 0 elsewhere.
    """
    hidden, embedding, bias = layer
    rows = hidden.reshape(-1, hidden.shape[-1])
    if mask is None or capacity is None:
        result: Tensor = _logsumexp(rows, embedding, bias)
    else:
        taken = rows_of(mask.flatten(), capacity)
        result = taken.put(_logsumexp(taken.take(rows), embedding, bias))
        result = result + nan_if(taken.too_many, result)
    return result.view(hidden.shape[:-1])


@torch.library.custom_op("oaxe::linear_logsumexp", mutates_args=())
def _logsumexp(hidden: Tensor, embedding: Tensor, bias: Tensor | None) -> Tensor:
    result = at_least_float32(hidden.new_empty(0)).new_empty(len(hidden))
    for some, logits in chunks(hidden, embedding, bias, result.dtype):
        result[some] = kernels_for(logits).logsumexp(logits)
    return result


@_logsumexp.register_fake
def _(hidden: Tensor, embedding: Tensor, bias: Tensor | None) -> Tensor:
    return at_least_float32(hidden.new_empty(hidden.shape[0]))  # len would fix a dynamic size


@torch.library.custom_op("oaxe::linear_logsumexp_backward", mutates_args=())
def _logsumexp_backward(
    gradient: Tensor, logsumexp: Tensor, hidden: Tensor, embedding: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    of = Gradients(hidden, embedding, bias)
    for some, logits in chunks(hidden, embedding, bias, logsumexp.dtype):
        weighted = kernels_for(logits).weighted_softmax(
            logits, logsumexp[some], gradient[some], hidden.dtype
        )
        of.add(some, weighted)
    return of.hidden, of.embedding, of.bias


@_logsumexp_backward.register_fake
def _(gradient: Tensor, logsumexp: Tensor, *layer: Any) -> tuple[Tensor, Tensor, Tensor]:
    return like_gradients(*layer)


def _remember_logsumexp(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs)


def _differentiate_logsumexp(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    logsumexp, hidden, embedding, bias = ctx.saved_tensors
    of = _logsumexp_backward(gradient.contiguous(), logsumexp, hidden, embedding, bias)
    return of[0], of[1].to(embedding.dtype), None if bias is None else of[2].to(bias.dtype)


_logsumexp.register_autograd(_differentiate_logsumexp, setup_context=_remember_logsumexp)
_logsumexp_backward.register_autograd(no_second_derivative)


def layer_cross_entropy(
    layer: Layer,
    targets: Targets,
    weight: Tensor | None,
    label_smoothing: float,
    least_probability: float,
    capacity: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The differentiable sum of all losses, and the words that are in it, ``(batch, length)`` bool.

    Args:
        layer: of hidden states ``(batch, length, dim)``.
        targets: ``(batch, length)``.
        weight: ``(vocab,)`` class weights, in float32 or better.
        label_smoothing: weight of the uniform distribution.
        least_probability: a word that is not above it contributes nothing; negative for all.
        capacity: the most words that take part; others are then not computed. The sum is NaN if
            there are more.
    """
    hidden, embedding, bias = layer
    differentiate = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in layer
    )
    states = hidden.reshape(-1, hidden.shape[-1])
    words, mask = (x.flatten() for x in targets)
    taken = None if capacity is None else rows_of(mask, capacity)
    if taken is not None:
        states, words, mask = taken.take(states), taken.take(words), taken.real
    options = weight, label_smoothing, least_probability, differentiate
    total, kept, *_ = _cross_entropy(states, embedding, bias, words, mask, *options)
    if taken is not None:
        total, kept = total + nan_if(taken.too_many, total), taken.put(kept)
    return total, kept.view(targets.mask.shape)


def nan_if(wrong: Tensor, like: Tensor) -> Tensor:
    """NaN or 0, without dimensions."""
    return torch.where(wrong, like.new_full((), torch.nan), like.new_zeros(()))


@torch.library.custom_op("oaxe::linear_cross_entropy", mutates_args=())
def _cross_entropy(
    hidden: Tensor,
    embedding: Tensor,
    bias: Tensor | None,
    words: Tensor,
    mask: Tensor,
    weight: Tensor | None,
    label_smoothing: float,
    least_probability: float,
    differentiate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    losses = at_least_float32(hidden.new_empty(0)).new_empty(len(hidden))
    kept = torch.empty_like(mask)
    of = Gradients(hidden, embedding, bias) if differentiate else None
    options = weight, label_smoothing, least_probability, differentiate
    for some, logits in chunks(hidden, embedding, bias, hidden.dtype):
        losses[some], kept[some] = kernels_for(logits).cross_entropy(
            logits, words[some], mask[some], *options
        )
        if of is not None:
            of.add(some, logits)
    gradients = _no_gradients(losses) if of is None else (of.hidden, of.embedding, of.bias)
    return losses.sum(), kept, *gradients


@_cross_entropy.register_fake
def _(
    hidden: Tensor, embedding: Tensor, bias: Tensor | None, words: Tensor, mask: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    total, differentiate = at_least_float32(hidden.new_empty(())), rest[-1]
    gradients = like_gradients(hidden, embedding, bias) if differentiate else _no_gradients(total)
    return total, torch.empty_like(mask), *gradients


def _remember_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.dtypes = [None if x is None else x.dtype for x in inputs[:3]]
    ctx.save_for_backward(*output[2:])


def _scale_gradients(ctx: Any, of_total: Tensor | None, *others: Any) -> tuple[Any, ...]:
    if any(other is not None for other in others):
        no_second_derivative()
    if of_total is None:
        return (None,) * 9
    scaled = (
        None if dtype is None else (gradient * of_total).to(dtype)
        for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
    )
    return *scaled, *(None,) * 6


_cross_entropy.register_autograd(_scale_gradients, setup_context=_remember_gradients)


class Gradients:
    """Of hidden states, embedding and bias, added up over chunks of d loss / d logits."""

    def __init__(self, hidden: Tensor, embedding: Tensor, bias: Tensor | None) -> None:
        self.inputs = hidden, embedding
        self.hidden, self.embedding, self.bias = like_gradients(hidden, embedding, bias)
        self.embedding.zero_()
        self.bias.zero_()

    def add(self, some: slice, of_logits: Tensor) -> None:
        """``of_logits (chunk, vocab)`` is a gradient, of the dtype of hidden."""
        hidden, embedding = self.inputs
        torch.mm(of_logits, embedding, out=self.hidden[some])
        _add_product(self.embedding, of_logits.T, hidden[some])
        if len(self.bias):
            self.bias += of_logits.sum(0, dtype=self.bias.dtype)


def like_gradients(
    hidden: Tensor, embedding: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the gradients; those that sum over many tokens are float32 or better."""
    at_least = at_least_float32(hidden.new_empty(0))
    return (
        hidden.new_empty(hidden.shape),
        at_least.new_empty(embedding.shape),
        at_least.new_empty(0 if bias is None else bias.shape[0]),
    )


def _no_gradients(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return like.new_empty(0), like.new_empty(0), like.new_empty(0)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, added up in the dtype of total."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def chunks(
    hidden: Tensor, embedding: Tensor, bias: Tensor | None, dtype: torch.dtype, around: int = 0
) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the tokens, each with its logits, ``(chunk, vocab)``, to be overwritten.

    They are valid until the next. With those of so many tokens ``around`` it; before the first and
    after the last there are zeros.
    """
    n_tokens = len(hidden)
    row_bytes = max(1, len(embedding)) * dtype.itemsize
    size = max(1, CHUNK_BYTES.get(hidden.device.type, 2**24) // row_bytes)
    size = size // 1024 * 1024 or size  # whole tiles of the products
    store = None
    if not hidden.is_cuda:
        hidden, embedding = hidden.to(dtype), embedding.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        # One for all chunks: the system clears memory before it hands it out, page by page.
        store = hidden.new_empty(min(size, n_tokens) + 2 * around, len(embedding))
    if around:
        hidden = F.pad(hidden, (0, 0, around, around))
    for start in range(0, n_tokens, size):
        rows = hidden[start : start + size + 2 * around]
        out = None if store is None else store[: len(rows)]
        yield slice(start, start + size), _logits(rows, embedding, bias, dtype, out)


def _logits(
    hidden: Tensor, embedding: Tensor, bias: Tensor | None, dtype: torch.dtype, out: Tensor | None
) -> Tensor:
    with unrounded(hidden.device):
        if out is not None:
            logits = torch.mm(hidden, embedding.T, out=out)
        elif hidden.dtype == dtype:
            return F.linear(hidden, embedding, bias)
        else:
            logits = torch.mm(hidden, embedding.T, out_dtype=dtype)
    return logits if bias is None else logits.add_(bias)


def kernels_for(logits: Tensor) -> ModuleType:
    """What works on rows of logits: two implementations of the same three functions."""
    on_gpu = logits.is_cuda and logits.dtype != torch.float64
    return (triton_kernels("softmax") if on_gpu else None) or softmax_rows
