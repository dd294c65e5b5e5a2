"""The Transformer that every system is built on: causal for autoregressive ones, else not.

As in the CMLM: GELU, learned positions, one embedding for source, target and output.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oaxe.losses import linear_xe_loss
from oaxe.losses.rows import Rows, rows_of
from oaxe.model.attention import has_step_kernel
from oaxe.model.dropout import DropoutLayer
from oaxe.model.flat import decode_flat, encode_flat
from oaxe.model.layers import DecoderLayer, EncoderLayer, Store
from oaxe.model.layers import Encoded as Encoded
from oaxe.model.layers import Norm as Norm
from oaxe.model.residual import Dropout, sum_and_normalise
from oaxe.model.spans import Spans, spans_between
from oaxe.text.plans import Room
from oaxe.text.symbols import PAD

Positions = Literal["start", "both"]


class Size(TypedDict):
    dim: int
    ffn: int
    heads: int
    encoder_layers: int
    decoder_layers: int


SIZES: dict[str, Size] = {
    "tiny": Size(dim=128, ffn=512, heads=4, encoder_layers=2, decoder_layers=2),
    "small": Size(dim=256, ffn=1024, heads=4, encoder_layers=3, decoder_layers=3),
    "base": Size(dim=512, ffn=2048, heads=8, encoder_layers=6, decoder_layers=6),
    "big": Size(dim=1024, ffn=4096, heads=16, encoder_layers=6, decoder_layers=6),
    # As fast as an autoregressive model gets at nearly the quality of "base".
    "12-1": Size(dim=512, ffn=2048, heads=8, encoder_layers=12, decoder_layers=1),
}


class Cache(NamedTuple):
    """Keys and values that a causal decoder need not compute again, of all its layers.

    The k rows of a sentence (its beams) share a store and never move in it: where a row goes on
    from what another was, only its path changes.
    """

    source: Tensor  # (layers, sentences, source_len, 2, heads, dim / heads)
    mask: Tensor  # (sentences, source_len) bool
    own: Tensor  # (layers, sentences, steps, k, 2, heads, dim / heads)
    paths: Tensor  # (sentences, k, steps) int32: the row that this one was then, -1 if not yet


class Transformer(nn.Module):
    """Encoder and decoder. Sequences are padded with PAD on the right.

    Args:
        vocab_size: ids of the joint vocabulary.
        dim, ffn, heads, encoder_layers, decoder_layers: see :data:`SIZES`.
        dropout: on embeddings and on the output of every sublayer.
        norm: layer normalisation after (``"post"``) or before (``"pre"``) each sublayer.
        positions: ``"start"``: counted from the first token; ``"both"``: from the last one as well,
            so that "the third from the end" is as easy to learn as "the third". Not for a causal
            model, which does not know its end.
        max_length: the most tokens of a sentence on either side, special symbols not counted.
        causal: True for autoregressive models, False for those that predict in one pass.
        target_positions: the most positions of the decoder; default: ``max_length + 2``.

    Weights are those of torch's layers: :func:`initialise` draws them as in the CMLM.

    Example:
        >>> model = Transformer(vocab_size=50, **SIZES["tiny"], max_length=20, causal=False)
        >>> encoded = model.encode(torch.tensor([[9, 8, 7]]))
        >>> inputs = torch.tensor([[4, 4]])  # two masks
        >>> model.logits(model.decode(inputs, inputs != 0, encoded)).shape
        torch.Size([1, 2, 50])
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        ffn: int,
        heads: int,
        encoder_layers: int,
        decoder_layers: int,
        max_length: int,
        causal: bool,
        dropout: float = 0.1,
        norm: Norm = "post",
        positions: Positions = "start",
        target_positions: int | None = None,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim must be a multiple of heads, got dim {dim} and {heads} heads")
        if norm not in ("post", "pre"):
            raise ValueError(f'norm must be "post" or "pre", got {norm!r}')
        if positions not in ("start", "both") or (causal and positions == "both"):
            raise ValueError(
                f'positions must be "start", or "both" if not causal; got {positions!r}'
            )
        self.max_length, self.causal = max_length, causal
        # The most tokens of a batch, while it is computed without its padding; see `packed`.
        self.room: Room | None = None
        # True: layers compute their activations again in the backward pass, instead of keeping
        # them: less memory, more time, the same gradients.
        self.recompute = False
        self.tokens = nn.Embedding(vocab_size, dim)
        # Two more than max_length: LENGTH or BOS in front, EOS behind.
        n_source = max_length + 2
        n_target = n_source if target_positions is None else target_positions
        self.source_positions = nn.Embedding(n_source, dim)
        self.target_positions = nn.Embedding(n_target, dim)
        both = positions == "both"
        self.source_from_end = nn.Embedding(n_source, dim) if both else None
        self.target_from_end = nn.Embedding(n_target, dim) if both else None
        self.source_norm, self.target_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = DropoutLayer(dropout)
        layer = (dim, ffn, heads, dropout, norm)
        self.encoder = nn.ModuleList(EncoderLayer(*layer) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*layer) for _ in range(decoder_layers))
        # Post-norm layers end normalised; the sum that pre-norm layers build up does not.
        pre = norm == "pre"
        self.encoder_norm = nn.LayerNorm(dim) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(dim) if pre else nn.Identity()

    def encode(self, source: Tensor) -> Encoded:
        """``source (batch, source_len)``, special symbols included."""
        mask = source != PAD
        if self.room is not None:
            return self._encode_packed(source, mask, self.room.source)
        x = self._embed(source, self.source_positions)
        if self.source_from_end is not None:
            x = x + self.source_from_end(positions_from_end(mask))
        x = self.dropout(self.source_norm(x))
        for layer in self.encoder:
            x = self._through(layer, x, mask)
        return Encoded(self.encoder_norm(x), mask)

    def decode(
        self, inputs: Tensor, mask: Tensor, encoded: Encoded, more: Tensor | None = None
    ) -> Tensor:
        """The last hidden states, ``(rows, length, dim)``.

        Args:
            inputs: ``(rows, length)``. ``rows`` is a multiple k of the sentences that were encoded:
                rows 0..k-1 belong to the first, and so on.
            mask: ``(rows, length)`` bool, False for padding.
            encoded: what :meth:`encode` returned.
            more: ``(rows, length, dim)``: what the decoder reads besides tokens and positions.
        """
        if self.room is not None:
            x, rows, spans = self._target_packed(inputs, mask, encoded, more)
            hidden = self._decode_flat(self.decoder, x, spans, encoded)
            return rows.put(hidden).view(*mask.shape, -1)
        x = self._target(inputs, mask, more)
        for layer in self.decoder:
            x = self._through(layer, x, *self._seen(mask, encoded))
        return self.decoder_norm(x)

    def decode_by_layer(
        self,
        inputs: Tensor,
        mask: Tensor,
        encoded: Encoded,
        between: Callable[[Tensor, int], Tensor],
    ) -> list[Tensor]:
        """The hidden states of every layer, each as if it were the last: ``(rows, length, dim)``.

        Args:
            inputs, mask, encoded: as for :meth:`decode`.
            between: takes the states of a layer and its number, from 0, and returns what the next
                one reads, of the same shape.
        """
        states: list[Tensor] = []
        if self.room is not None:
            x, rows, spans = self._target_packed(inputs, mask, encoded, None)
            for n in range(len(self.decoder)):
                if n > 0:
                    x = rows.take(between(states[-1], n - 1).flatten(0, 1).to(x.dtype))
                hidden = self._decode_flat(self.decoder[n : n + 1], x, spans, encoded)
                states.append(rows.put(hidden).view(*mask.shape, -1))
            return states
        x = self._target(inputs, mask, None)
        for n, layer in enumerate(self.decoder):
            x = between(states[-1], n - 1) if n > 0 else x
            states.append(self.decoder_norm(self._through(layer, x, *self._seen(mask, encoded))))
        return states

    def _target(self, inputs: Tensor, mask: Tensor, more: Tensor | None) -> Tensor:
        """``(rows, length, dim)``: what the first layer of the decoder reads."""
        x = self._embed(inputs, self.target_positions)
        x = x if more is None else x + more
        if self.target_from_end is not None:
            x = x + self.target_from_end(positions_from_end(mask))
        return self.dropout(self.target_norm(x))

    def _seen(self, mask: Tensor, encoded: Encoded) -> tuple[Tensor | None, Encoded, bool]:
        """What is padded on the right lies in the future of every real token, so a causal decoder
        needs no other mask."""
        return None if self.causal else mask, encoded, self.causal

    def _encode_packed(self, source: Tensor, mask: Tensor, room: int) -> Encoded:
        rows, lengths = rows_of(mask.flatten(), room), mask.sum(1)
        tables = self.source_positions, self.source_from_end, self.source_norm
        x = self.embed_packed(source, mask, rows, *tables)
        spans = spans_between(lengths, lengths, room, room)
        hidden = encode_flat(self.encoder, x, spans, self.encoder_norm, self.recompute)
        return Encoded(hidden, mask, rows)

    def _target_packed(
        self, inputs: Tensor, mask: Tensor, encoded: Encoded, more: Tensor | None
    ) -> tuple[Tensor, Rows, tuple[Spans, Spans]]:
        """``(tokens, dim)``: what the decoder reads; where the tokens are, and what they see."""
        assert self.room is not None
        rows = rows_of(mask.flatten(), self.room.target)
        tables = self.target_positions, self.target_from_end, self.target_norm
        x = self.embed_packed(inputs, mask, rows, *tables, more)
        n_source, n_target = self.room.source, self.room.target
        lengths, source_lengths = mask.sum(1), encoded.mask.sum(1)
        own = spans_between(lengths, lengths, n_target, n_target, causal=self.causal)
        cross = spans_between(lengths, source_lengths, n_target, n_source)
        return x, rows, (own, cross)

    def _decode_flat(
        self, layers: nn.ModuleList, x: Tensor, spans: tuple[Spans, Spans], encoded: Encoded
    ) -> Tensor:
        own, cross = spans
        norm = self.decoder_norm
        return decode_flat(layers, x, own, encoded.hidden, cross, norm, self.recompute)

    @contextmanager
    def packed(self, room: Room | None) -> Iterator[None]:
        """Compute without padding, for which there must be room; None: with it."""
        self.room = room
        try:
            yield
        finally:
            self.room = None

    @property
    def capacity(self) -> int | None:
        """The most positions of the decoder that take part, if it is known."""
        return None if self.room is None else self.room.target

    def cross_entropy(self, hidden: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
        """The summed loss of ``target (rows, length)``, of the states that :meth:`decode` returned.

        Tokens without a loss are IGNORED.
        """
        return linear_xe_loss(
            hidden,
            self.output_weight,
            target,
            label_smoothing=label_smoothing,
            reduction="sum",
            capacity=self.capacity,
        )

    def decode_next(self, tokens: Tensor, step: Tensor, cache: Cache, room: int) -> Tensor:
        """The hidden states after one more token a row, ``(sentences, k, dim)``; causal models.

        Args:
            tokens: ``(sentences, k)``.
            step: ``(sentences,)``: how many tokens the rows of each sentence have read before.
            cache: of :meth:`new_cache`; the new tokens are added to it.
            room: more than any step, but no more than the cache has: keys beyond are not read.
        """
        _, sentences, steps, k, _, _, head_dim = cache.own.shape
        row = torch.arange(k, dtype=cache.paths.dtype, device=step.device)
        rows = row.view(1, k, 1).expand(sentences, k, 1)
        cache.paths.scatter_(2, step.view(-1, 1, 1).expand_as(rows), rows)
        x = self.tokens(tokens) + self.target_positions(step).unsqueeze(1)
        x = self.dropout(self.target_norm(x))
        own_mask = source_mask = None
        if not has_step_kernel(x, k, head_dim):
            on_path = cache.paths[:, :, :room].unsqueeze(3) == row
            own_mask, source_mask = on_path.view(sentences * k, room * k), cache.mask
        n_own, n_source = (step + 1) * k, cache.mask.sum(1)
        place = step + torch.arange(0, sentences * steps, steps, device=step.device)
        for layer, own, source in zip(self.decoder, cache.own, cache.source, strict=True):
            assert isinstance(layer, DecoderLayer)
            x = layer.next(
                x,
                Store(own.flatten(1, 2), n_own, own_mask, cache.paths, place),
                Store(source, n_source, source_mask),
            )
        return self.decoder_norm(x)

    def new_cache(self, sentences: int, source_len: int, rows: int, steps: int) -> Cache:
        """An empty cache for ``rows`` rows a sentence; see :meth:`begin`."""
        weight, first = self.output_weight, self.decoder[0]
        assert isinstance(first, DecoderLayer)
        device, dtype = weight.device, weight.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        heads = first.heads
        entry = (2, heads, weight.shape[1] // heads)
        layers = len(self.decoder), sentences
        return Cache(
            # Zeros: what is masked has the weight 0, and must not be NaN.
            torch.zeros(*layers, source_len, *entry, dtype=dtype, device=device),
            torch.zeros(sentences, source_len, dtype=torch.bool, device=device),
            torch.zeros(*layers, steps, rows, *entry, dtype=dtype, device=device),
            torch.full((sentences, rows, steps), -1, dtype=torch.int32, device=device),
        )

    def begin(self, source: Tensor, cache: Cache, sentences: Tensor) -> None:
        """Encode ``source (n, source_len)`` as these ``sentences (n,)`` of the cache."""
        encoded = self.encode(source)
        for layer, store in zip(self.decoder, cache.source, strict=True):
            assert isinstance(layer, DecoderLayer)
            store.index_copy_(0, sentences, layer.source_keys_values(encoded).to(store.dtype))
        cache.mask.index_copy_(0, sentences, encoded.mask)
        cache.paths.index_fill_(0, sentences, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """``(..., dim)`` to ``(..., vocab)``."""
        return F.linear(hidden, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """``(vocab, dim)``: the embedding is also the output projection."""
        return self.tokens.weight

    def _through(self, layer: nn.Module, *arguments: Any) -> Tensor:
        """The output of a layer; with ``recompute`` none of its activations are kept."""
        if self.recompute and self.training and torch.is_grad_enabled():
            # Dropout draws the same numbers the second time.
            return checkpoint(layer, *arguments, use_reentrant=False)
        return layer(*arguments)

    def _embed(self, tokens: Tensor, positions: nn.Embedding) -> Tensor:
        self._check_length(tokens, positions)
        return self.tokens(tokens) + positions.weight[: tokens.shape[1]]

    def _check_length(self, tokens: Tensor, positions: nn.Embedding) -> None:
        length = tokens.shape[1]
        if length > positions.num_embeddings:
            raise ValueError(
                f"a sequence of {length} tokens does not fit into {positions.num_embeddings} "
                f"positions; max_length is {self.max_length}"
            )

    def embed_packed(
        self,
        tokens: Tensor,
        mask: Tensor,
        rows: Rows,
        positions: nn.Embedding,
        from_end: nn.Embedding | None,
        norm: nn.LayerNorm,
        more: Tensor | None = None,
    ) -> Tensor:
        """``(tokens, dim)``: what the layers read of ``tokens (batch, length)``."""
        self._check_length(tokens, positions)
        place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        # NaN is seen, where tokens that do not fit would not be missed.
        table = positions.weight + torch.where(rows.too_many, torch.nan, 0.0)
        at = F.embedding(rows.take(place.flatten()), table)
        if from_end is not None:
            at = at + from_end(rows.take(positions_from_end(mask).flatten()))
        if more is not None:
            at = at + rows.take(more.flatten(0, 1)).to(at.dtype)
        x: Tensor = self.tokens(rows.take(tokens.flatten()))
        x = sum_and_normalise(x, at, None, norm, Dropout(None, 0, 0.0), x.dtype)[0]
        return self.dropout(x)


def positions_from_end(mask: Tensor) -> Tensor:
    """``(rows, length)``: 0 for the last real token of a row, 1 for the one before; 0 for padding.

    Example:
        >>> positions_from_end(torch.tensor([[True, True, True, False]]))
        tensor([[2, 1, 0, 0]])
    """
    positions = mask.sum(1, keepdim=True) - 1 - torch.arange(mask.shape[1], device=mask.device)
    return positions.clamp(min=0)


def initialise(module: nn.Module) -> None:
    """Draw the weights of all linear layers and embeddings anew, as in the CMLM: N(0, 0.02)."""
    module.apply(_initialise)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
