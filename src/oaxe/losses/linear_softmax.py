"""Softmax of a linear layer whose logits are never stored: computed in chunks of tokens.

Two operators over ``hidden (tokens, dim)`` and ``weight (vocab, dim)``: the logsumexp, and the sum
of cross entropies. Each chunk of logits is one matrix product; what follows, row by row, is plain
PyTorch on the CPU (the reference) and one Triton kernel on a GPU; the gradients are two more
products.

The cross entropy finds its gradients on the way forward, since all that they lack is one factor:
3 products of 2 * tokens * vocab * dim operations instead of 4. For 131,072 tokens, 32,000 words
and dim 512 that is 12.9 TFLOP, 16 ms at 790 TFLOP/s. In bfloat16 the logits are 8.4 GB; they are
written once, read and overwritten by the row kernel and read twice, of which the row kernel's two
passes (4 ms at 4.2 TB/s) are not hidden behind arithmetic.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import at_least_float32, check_tensors

CHUNK_BYTES = {"cpu": 2**24, "cuda": 2**29}  # of logits at a time


def linear_logsumexp(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""The log of the softmax's denominator for each token, without storing its logits.

    .. math:: \log \sum_v \exp(h \cdot E_v + b_v)

    The gradient computes the logits again, chunk by chunk; there is no second derivative.

    Args:
        hidden: ``(..., dim)``.
        weight: E, ``(vocab, dim)``, of the same dtype.
        bias: b, ``(vocab,)``.

    Returns:
        ``(...)``, in float32 or better.

    Example:
        >>> linear_logsumexp(torch.zeros(2, 3), torch.ones(10, 3)).exp()
        tensor([10., 10.])
    """
    hidden, weight, bias = as_linear_would(hidden, weight, bias)
    result: Tensor = _logsumexp(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
    return result.view(hidden.shape[:-1])


def as_linear_would(
    hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check the shapes, and cast as F.linear does under autocast."""
    check_tensors(hidden=hidden, weight=weight)
    vocab, dim = weight.shape if weight.dim() == 2 else (-1, -1)
    if hidden.dim() == 0 or hidden.shape[-1] != dim or not hidden.is_floating_point():
        raise ValueError(
            "hidden must be floating point (..., dim) and weight (vocab, dim), "
            f"got {hidden.dtype} of shape {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != (vocab,):
        raise ValueError(f"bias must be of shape ({vocab},), got {tuple(bias.shape)}")
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if weight.dtype != hidden.dtype:
        raise ValueError(
            f"hidden is {hidden.dtype}, weight {weight.dtype}; they must be the same, as autocast "
            "makes them"
        )
    return hidden, weight, None if bias is None else bias.to(hidden.dtype)


@torch.library.custom_op("oaxe::linear_logsumexp", mutates_args=())
def _logsumexp(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result = at_least_float32(hidden.new_empty(0)).new_empty(len(hidden))
    for some, logits in _chunks(hidden, weight, bias):
        result[some] = _rows(logits).logsumexp(logits)
    return result


@_logsumexp.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return at_least_float32(hidden.new_empty(hidden.shape[0]))  # len would fix a dynamic size


@torch.library.custom_op("oaxe::linear_logsumexp_backward", mutates_args=())
def _logsumexp_backward(
    gradient: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    of = Gradients(hidden, weight, bias)
    for some, logits in _chunks(hidden, weight, bias):
        _rows(logits).weigh_softmax(logits, logsumexp[some], gradient[some])
        of.add(some, logits)
    return of.hidden, of.weight, of.bias


@_logsumexp_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _like_gradients(hidden, weight, bias)


def _remember_logsumexp(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    hidden, weight, bias = inputs
    ctx.save_for_backward(hidden, weight, bias, output)


def _differentiate_logsumexp(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    hidden, weight, bias, logsumexp = ctx.saved_tensors
    of = _logsumexp_backward(gradient.contiguous(), hidden, weight, bias, logsumexp)
    return of[0], of[1].to(weight.dtype), None if bias is None else of[2].to(bias.dtype)


_logsumexp.register_autograd(_differentiate_logsumexp, setup_context=_remember_logsumexp)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    words: Tensor,
    counts: Tensor,
    label_smoothing: float,
    least_probability: float,
) -> tuple[Tensor, Tensor]:
    """The differentiable sum of all losses, and each of them without gradient, ``(tokens,)``.

    Args:
        hidden: ``(tokens, dim)``.
        weight: ``(vocab, dim)``.
        bias: ``(vocab,)`` or None.
        words: ``(tokens,)`` int64, inside the vocabulary even where they do not count.
        counts: ``(tokens,)`` bool.
        label_smoothing: weight of the uniform distribution.
        least_probability: a word that is not above it contributes nothing; negative for all.
    """
    given = (hidden, weight) if bias is None else (hidden, weight, bias)
    differentiate = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    total, losses, *_ = _cross_entropy(
        hidden, weight, bias, words, counts, label_smoothing, least_probability, differentiate
    )
    return total, losses.detach()


@torch.library.custom_op("oaxe::linear_cross_entropy", mutates_args=())
def _cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    words: Tensor,
    counts: Tensor,
    label_smoothing: float,
    least_probability: float,
    differentiate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    losses = at_least_float32(hidden.new_empty(0)).new_empty(len(hidden))
    of = Gradients(hidden, weight, bias) if differentiate else None
    for some, logits in _chunks(hidden, weight, bias):
        losses[some] = _rows(logits).cross_entropy(
            logits, words[some], counts[some], label_smoothing, least_probability, differentiate
        )
        if of is not None:
            of.add(some, logits)
    gradients = _no_gradients(losses) if of is None else (of.hidden, of.weight, of.bias)
    return losses.sum(), losses, *gradients


@_cross_entropy.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    words: Tensor,
    counts: Tensor,
    label_smoothing: float,
    least_probability: float,
    differentiate: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    losses = at_least_float32(hidden.new_empty(hidden.shape[0]))
    gradients = _like_gradients(hidden, weight, bias) if differentiate else _no_gradients(losses)
    return losses.new_empty(()), losses, *gradients


def _remember_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.dtypes = [None if x is None else x.dtype for x in inputs[:3]]
    ctx.save_for_backward(*output[2:])


def _scale_gradients(ctx: Any, of_total: Tensor | None, *others: Any) -> tuple[Any, ...]:
    if any(other is not None for other in others):
        raise RuntimeError("the losses of a linear layer have no second derivative")
    if of_total is None:
        return (None,) * 8
    scaled = (
        None if dtype is None else (gradient * of_total).to(dtype)
        for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
    )
    return *scaled, None, None, None, None, None


_cross_entropy.register_autograd(_scale_gradients, setup_context=_remember_gradients)


class Gradients:
    """Of hidden states, weight and bias, added up over chunks of d loss / d logits."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.inputs = hidden, weight
        self.hidden, self.weight, self.bias = _like_gradients(hidden, weight, bias)
        self.weight.zero_()
        self.bias.zero_()

    def add(self, some: slice, logits: Tensor) -> None:
        """``logits`` holds the gradient by now: ``(chunk, vocab)``, of the dtype of hidden."""
        hidden, weight = self.inputs
        torch.mm(logits, weight, out=self.hidden[some])
        _add_product(self.weight, logits.T, hidden[some])
        if len(self.bias):
            self.bias += logits.sum(0, dtype=self.bias.dtype)


def _like_gradients(
    hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the gradients; those that sum over many tokens are float32 or better."""
    at_least = at_least_float32(hidden.new_empty(0))
    of_weight = at_least.new_empty(weight.shape)
    return (
        hidden.new_empty(hidden.shape),
        of_weight,
        at_least.new_empty(0 if bias is None else bias.shape[0]),
    )


def _no_gradients(losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return losses.new_empty(0), losses.new_empty(0), losses.new_empty(0)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, added up in the dtype of total."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _chunks(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the tokens, each with its logits, ``(chunk, vocab)``, to be overwritten."""
    row_bytes = max(1, len(weight)) * hidden.element_size()
    size = max(1, CHUNK_BYTES.get(hidden.device.type, 2**24) // row_bytes)
    size = size // 1024 * 1024 or size  # whole tiles of the products
    for start in range(0, len(hidden), size):
        some = slice(start, start + size)
        yield some, F.linear(hidden[some], weight, bias)


def _rows(logits: Tensor) -> ModuleType:
    """What works on rows of logits: two implementations of the same three functions."""
    from oaxe.losses import softmax_rows

    if logits.is_cuda and logits.dtype != torch.float64:
        try:
            from oaxe.losses.kernels import softmax
        except ImportError:  # no Triton
            return softmax_rows
        return softmax
    return softmax_rows
