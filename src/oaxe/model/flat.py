"""Encoder and decoder layers over packed sentences: one after the other, without padding.

The layers are those of :mod:`oaxe.model.layers`, and so is what they compute. Every sum waits
for the normalisation that follows it, in this block or the next, so that a GPU does both at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oaxe.model.feed_forward import linear_gelu
from oaxe.model.layers import Attention, FeedForward, Residual
from oaxe.model.residual import Dropout, sum_and_normalise
from oaxe.model.span_attention import cross_attention, is_fast, self_attention
from oaxe.model.spans import Spans


class Stream(NamedTuple):
    """Tokens on their way through the layers."""

    x: Tensor  # (tokens, dim): what the next block adds to
    read: Tensor  # (tokens, dim): what it reads, if layers are normalised at their end
    dtype: torch.dtype  # of what blocks read
    dropout: Dropout
    update: Tensor | None = None  # (tokens, dim): not added yet
    bias: Tensor | None = None  # (dim,): of the update


def encode_flat(
    layers: nn.ModuleList, x: Tensor, spans: Spans, norm: nn.Module, recompute: bool = False
) -> Tensor:
    """The last hidden states of an encoder, ``(tokens, dim)``.

    Args:
        layers: of type :class:`~oaxe.model.layers.EncoderLayer`, all weights of one dtype but
            for normalisations, which may be more precise.
        x: ``(tokens, dim)``, embedded. Of the dtype of the weights; or more precise, if layers
            are normalised before each block.
        spans: which tokens each one sees.
        norm: after the last layer; ``nn.Identity`` for none.
        recompute: compute activations again in the backward pass, instead of keeping them.
    """
    if not len(layers):  # a language model
        return norm(x).to(x.dtype)
    stream = _begin(layers, x)
    for layer in layers:
        stream = _through(_encoder_layer, recompute, layer, stream, spans)
    return _end(stream, norm)


def decode_flat(
    layers: nn.ModuleList,
    x: Tensor,
    spans: Spans,
    source: Tensor,
    source_spans: Spans,
    norm: nn.Module,
    recompute: bool = False,
) -> Tensor:
    """The last hidden states of a decoder, ``(tokens, dim)``.

    Args:
        layers: of type :class:`~oaxe.model.layers.DecoderLayer`.
        x, norm, recompute: as for :func:`encode_flat`.
        spans: which of its own tokens each one sees.
        source: ``(keys, dim)``, encoded.
        source_spans: which tokens of the source each one sees.
    """
    stream = _begin(layers, x)
    for layer in layers:
        stream, source = _through(
            _decoder_layer, recompute, layer, stream, spans, source, source_spans
        )
    return _end(stream, norm)


def _encoder_layer(layer: Any, stream: Stream, spans: Spans) -> Stream:
    stream = _attend(layer.attention, stream, spans)
    return _feed_forward(layer.feed_forward, stream)


def _decoder_layer(
    layer: Any, stream: Stream, spans: Spans, source: Tensor, source_spans: Spans
) -> tuple[Stream, Tensor]:
    stream = _attend(layer.attention, stream, spans)
    stream, source = _attend_to(layer.source_attention, stream, source, source_spans)
    return _feed_forward(layer.feed_forward, stream), source


def _attend(residual: Residual, stream: Stream, spans: Spans) -> Stream:
    attention: Attention = residual.sublayer  # type: ignore[assignment]
    stream = _before(residual, stream)
    query, key_value = attention.query, attention.key_value
    weight = torch.cat([query.weight, key_value.weight])
    bias = torch.cat([query.bias, key_value.bias])
    out = self_attention(stream.read, weight, bias, attention.heads, spans)
    return _after(residual, stream, out)


def _attend_to(
    residual: Residual, stream: Stream, source: Tensor, spans: Spans
) -> tuple[Stream, Tensor]:
    attention: Attention = residual.sublayer  # type: ignore[assignment]
    stream = _before(residual, stream)
    query = attention.query.weight, attention.query.bias
    key_value = attention.key_value.weight, attention.key_value.bias
    out, source = cross_attention(stream.read, source, *query, *key_value, attention.heads, spans)
    return _after(residual, stream, out), source


def _feed_forward(residual: Residual, stream: Stream) -> Stream:
    block: FeedForward = residual.sublayer  # type: ignore[assignment]
    stream = _before(residual, stream)
    return _after(residual, stream, linear_gelu(stream.read, block.inner.weight, block.inner.bias))


def _begin(layers: nn.ModuleList, x: Tensor) -> Stream:
    """One random seed is drawn for all layers; on a CPU they draw for themselves."""
    first: Any = layers[0].attention
    dtype = first.sublayer.output.weight.dtype
    drop = first.dropout.p if first.training else 0.0
    draws = drop > 0 and is_fast(dtype, x.device)
    seed = torch.randint(2**62, (), device=x.device) if draws else None
    return Stream(x, x, dtype, Dropout(seed, 0, drop))


def _before(residual: Residual, stream: Stream) -> Stream:
    """The stream that the block reads."""
    return _normalised(stream, residual.norm, pre=True) if residual.pre else stream


def _after(residual: Residual, stream: Stream, out: Tensor) -> Stream:
    """The stream that the block leaves behind; ``out`` is yet to go through its last projection."""
    last: nn.Linear = residual.sublayer.output  # type: ignore[assignment]
    stream = stream._replace(update=F.linear(out, last.weight), bias=last.bias)
    return stream if residual.pre else _normalised(stream, residual.norm, pre=False)


def _normalised(stream: Stream, norm: nn.LayerNorm, pre: bool) -> Stream:
    x, _, dtype, dropout, update, bias = stream
    read, again, total = sum_and_normalise(x, update, bias, norm, dropout, dtype)
    next_dropout = dropout._replace(number=dropout.number + 1)
    return Stream(total if pre else again, read, dtype, next_dropout)


def _end(stream: Stream, norm: nn.Module) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        stream = _normalised(stream, norm, pre=True)
    return stream.read


def _through(layer: Callable[..., Any], recompute: bool, *arguments: Any) -> Any:
    if recompute and torch.is_grad_enabled():
        return checkpoint(layer, *arguments, use_reentrant=False)
    return layer(*arguments)
