"""The layers of a Transformer, over padded batches: attention, feed-forward block, what is between.

Packed sentences go through the same modules in another way, see :mod:`oaxe.model.flat`.
"""

from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from oaxe.losses.rows import Rows
from oaxe.model.attention import attention, step_attention
from oaxe.model.dropout import DropoutLayer
from oaxe.model.feed_forward import linear_gelu
from oaxe.model.residual import add_and_normalise

Norm = Literal["post", "pre"]


class Encoded(NamedTuple):
    hidden: Tensor  # (batch, source_len, dim); packed: (tokens, dim)
    mask: Tensor  # (batch, source_len) bool
    rows: Rows | None = None  # where the tokens are, if they are packed

    @property
    def first(self) -> Tensor:
        """``(batch, dim)``: the state of each sentence's first token."""
        if self.rows is None:
            return self.hidden[:, 0]
        first = self.rows.slot.view(self.mask.shape)[:, 0]
        return self.hidden[first.clamp(max=len(self.hidden) - 1)]


class Store(NamedTuple):
    """Keys and values that the rows of a sentence share; see :func:`step_attention`."""

    key_value: Tensor  # (sentences, keys, 2, heads, dim / heads)
    n_keys: Tensor  # (sentences,)
    mask: Tensor | None
    paths: Tensor | None = None
    place: Tensor | None = None  # (sentences,): where each puts its new keys; None: it has none

    def write(self, new: Tensor) -> None:
        """``new (sentences, k, 2, heads, dim / heads)``"""
        assert self.place is not None
        self.key_value.view(-1, *new.shape[1:]).index_copy_(0, self.place, new)


class Attention(nn.Module):
    """Multi-head attention, to the sequence itself or to keys and values computed before."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.output = nn.Linear(dim, dim)

    def keys_values(self, x: Tensor) -> Tensor:
        """``(batch, length, 2, heads, dim / heads)``"""
        batch, length, dim = x.shape
        return self.key_value(x).view(batch, length, 2, self.heads, dim // self.heads)

    def forward(
        self,
        x: Tensor,  # (rows, length, dim)
        seen: Tensor | Store | None,  # (batch or rows, keys) bool; None: all, but see causal
        source: Tensor | None = None,  # keys and values
        causal: bool = False,
    ) -> Tensor:
        if isinstance(seen, Store):
            return self._next(x, seen)
        if source is None:
            source = self.keys_values(x)
        # Several rows of x may share one source sentence (length candidates). Keys and values do
        # not depend on the row, so they are just more queries of them.
        batch, _, _, heads, head_dim = source.shape
        queries = self.query(x).view(batch, -1, heads, head_dim)
        return self.output(attention(queries, source, seen, causal).reshape(x.shape))

    def _next(self, x: Tensor, store: Store) -> Tensor:
        """``x (sentences, k, dim)``: one token a row."""
        if store.place is not None:
            store.write(self.keys_values(x))
        query = self.query(x).view(*x.shape[:2], self.heads, -1)
        attended = step_attention(query, store.key_value, store.n_keys, store.mask, store.paths)
        return self.output(attended.reshape(x.shape))


class FeedForward(nn.Module):
    def __init__(self, dim: int, ffn: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, ffn)
        self.output = nn.Linear(ffn, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(linear_gelu(x, self.inner.weight, self.inner.bias))


class Residual(nn.Module):
    """x + dropout(sublayer(x)), normalised after the sum (post) or before the sublayer (pre)."""

    def __init__(self, sublayer: nn.Module, dim: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.norm = nn.LayerNorm(dim)
        self.dropout = DropoutLayer(dropout)
        self.pre = norm == "pre"

    def forward(self, x: Tensor, *arguments: Any) -> Tensor:
        if self.pre:
            return x + self.dropout(self.sublayer(self.norm(x), *arguments))
        drop = self.dropout.p if self.training else 0.0
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        return add_and_normalise(x, self.sublayer(x, *arguments), *norm, drop)


class EncoderLayer(nn.Module):
    def __init__(self, dim: int, ffn: int, heads: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.attention = Residual(Attention(dim, heads), dim, dropout, norm)
        self.feed_forward = Residual(FeedForward(dim, ffn), dim, dropout, norm)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.feed_forward(self.attention(x, mask))


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, ffn: int, heads: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.heads = heads
        self.attention = Residual(Attention(dim, heads), dim, dropout, norm)
        self.source_attention = Residual(Attention(dim, heads), dim, dropout, norm)
        self.feed_forward = Residual(FeedForward(dim, ffn), dim, dropout, norm)

    def source_keys_values(self, encoded: Encoded) -> Tensor:
        attention = self.source_attention.sublayer
        assert isinstance(attention, Attention)
        return attention.keys_values(encoded.hidden)

    def forward(self, x: Tensor, mask: Tensor | None, encoded: Encoded, causal: bool) -> Tensor:
        source = self.source_keys_values(encoded)
        x = self.attention(x, mask, None, causal)
        return self.feed_forward(self.source_attention(x, encoded.mask, source))

    def next(self, x: Tensor, own: Store, source: Store) -> Tensor:
        """``x (sentences, k, dim)``: one token a row; see ``Transformer.decode_next``."""
        return self.feed_forward(self.source_attention(self.attention(x, own), source))
