"""How far two predictions of the same positions are apart, without storing their logits."""

from typing import Any

import torch
from torch import Tensor

from oaxe.losses.arguments import at_least_float32, no_second_derivative
from oaxe.losses.linear_softmax import Gradients, as_linear_would, chunks, like_gradients, nan_if
from oaxe.losses.rows import rows_of


def linear_divergence(
    input: Tensor,
    other: Tensor,
    linear_weight: Tensor,
    *,
    mask: Tensor | None = None,
    capacity: int | None = None,
) -> Tensor:
    r"""The mean of both Kullback-Leibler divergences between two predictions, summed up.

    .. math::
        \frac{1}{2} \sum_t D(P_t \| Q_t) + D(Q_t \| P_t)
        = \frac{1}{2} \sum_{t,v} (P_t(v) - Q_t(v)) (a_t(v) - b_t(v))

    for logits a and b of P and Q. As in R-Drop (Liang et al., 2021), both sides have a gradient;
    there is no second derivative.

    Args:
        input: ``(..., dim)``, of P.
        other: ``(..., dim)``, of Q.
        linear_weight: ``(vocab, dim)``.
        mask: ``(...)`` bool, True for positions that take part. Default: all.
        capacity: the most positions that take part, if that is known: no others are computed.

    Example:
        >>> states = torch.eye(2)
        >>> linear_divergence(states[:1], states[1:], torch.eye(2))
        tensor(0.4621)
    """
    p, q = (as_linear_would(x, linear_weight, None) for x in (input, other))
    if p.hidden.shape != q.hidden.shape:
        raise ValueError(
            "two predictions of the same positions are compared, got input of shape "
            f"{tuple(input.shape)} and other of shape {tuple(other.shape)}"
        )
    states = [x.hidden.reshape(-1, x.hidden.shape[-1]) for x in (p, q)]
    if mask is None:
        both: Tensor = _divergence(*states, p.embedding)
        return both.sum() / 2
    rows = rows_of(mask.flatten(), mask.numel() if capacity is None else capacity)
    both = _divergence(*(rows.take(x) for x in states), p.embedding)
    return torch.where(rows.real, both, 0).sum() / 2 + nan_if(rows.too_many, both)


@torch.library.custom_op("oaxe::linear_divergence", mutates_args=())
def _divergence(hidden: Tensor, other: Tensor, embedding: Tensor) -> Tensor:
    """``(tokens,)``, both divergences together."""
    result = at_least_float32(hidden.new_empty(0)).new_empty(len(hidden))
    of_p, of_q = (chunks(x, embedding, None, result.dtype) for x in (hidden, other))
    for (some, a), (_, b) in zip(of_p, of_q, strict=True):
        p, q = a.softmax(1), b.softmax(1)
        result[some] = p.sub_(q).mul_(a.sub_(b)).sum(1)
    return result


@_divergence.register_fake
def _(hidden: Tensor, *_: Any) -> Tensor:
    return at_least_float32(hidden.new_empty(hidden.shape[0]))


@torch.library.custom_op("oaxe::linear_divergence_backward", mutates_args=())
def _backward(
    gradient: Tensor, hidden: Tensor, other: Tensor, embedding: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a logit of P: P(v) - Q(v) + P(v) (d(v) - sum_u P(u) d(u)), for d = a - b."""
    one, two = Gradients(hidden, embedding, None), Gradients(other, embedding, None)
    of_p, of_q = (chunks(x, embedding, None, gradient.dtype) for x in (hidden, other))
    for (some, a), (_, b) in zip(of_p, of_q, strict=True):
        p, q, factor = a.softmax(1), b.softmax(1), gradient[some].unsqueeze(1)
        apart = a.sub_(b)
        of_a = p * (1 + apart - (p * apart).sum(1, keepdim=True)) - q
        one.add(some, (of_a * factor).to(hidden.dtype))
        of_b = q * (1 - apart + (q * apart).sum(1, keepdim=True)) - p
        two.add(some, (of_b * factor).to(hidden.dtype))
    return one.hidden, two.hidden, one.embedding + two.embedding


@_backward.register_fake
def _(
    gradient: Tensor, hidden: Tensor, other: Tensor, embedding: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    of_hidden, of_embedding, _ = like_gradients(hidden, embedding, None)
    return of_hidden, torch.empty_like(other), of_embedding


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_hidden, of_other, of_embedding = _backward(gradient.contiguous(), *ctx.saved_tensors)
    return of_hidden, of_other, of_embedding.to(ctx.saved_tensors[2].dtype)


_divergence.register_autograd(_differentiate, setup_context=_remember)
_backward.register_autograd(no_second_derivative)
