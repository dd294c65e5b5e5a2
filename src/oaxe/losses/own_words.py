"""What a model says of each sentence's own words, of logits or of a layer that would make them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.losses.arguments import at_least_float32, not_negative, unrounded
from oaxe.losses.linear_softmax import Layer, layer_logsumexp


def own_words(x: Tensor, words: Tensor) -> Tensor:
    """``(batch, position, word)``: of ``x (batch, position, vocab)``, that of each own word."""
    return x.gather(2, words.unsqueeze(1).expand(-1, x.shape[1], -1))


def log_probs_of(logits: Tensor, words: Tensor) -> Tensor:
    """``(batch, position, word)``: log-probabilities, in float32 or better."""
    return own_words(F.log_softmax(at_least_float32(logits), dim=-1), words)


def sentence_costs(
    layer: Layer, words: Tensor, mask: Tensor | None, capacity: int | None
) -> Tensor:
    """``(batch, position, word)``: -log-probabilities of each sentence's own words."""
    normalizer = layer_logsumexp(layer, mask, capacity)
    return not_negative(normalizer.unsqueeze(2) - sentence_scores(layer, words))


def sentence_scores(layer: Layer, words: Tensor) -> Tensor:
    """``(batch, position, word)``: logits of each sentence's own words, in float32 or better."""
    hidden, embedding, bias = layer
    embedded = F.embedding(words, embedding).transpose(1, 2)  # (batch, dim, word)
    scores = product(hidden, embedded)
    return scores if bias is None else scores + bias[words].unsqueeze(1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of matrices ``(batch, n, k)`` and ``(batch, k, m)``, in float32 or better."""
    with unrounded(a.device):
        if a.is_cuda and a.dtype.itemsize == 2:
            return _HalfProduct.apply(a, b)  # type: ignore[no-untyped-call]
        return at_least_float32(a) @ at_least_float32(b)


class _HalfProduct(torch.autograd.Function):
    """A batch of products of half precision, added up in float32; torch has no derivative of it.

    Gradients are products of half precision, as those of any layer are.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.bmm(a, b, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        gradient = gradient.to(a.dtype)
        return torch.bmm(gradient, b.mT), torch.bmm(a.mT, gradient)
