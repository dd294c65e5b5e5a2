"""A weak autoregressive decoder, which helps to train a one-pass decoder and is then dropped.

Wang et al., 2022. One causal layer predicts each word from those before it and from the states of
the one-pass decoder, and can do that well only if these hold the whole sentence. Translating does
not need it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from oaxe.losses import linear_xe_loss
from oaxe.losses.rows import rows_of
from oaxe.model.flat import decode_flat
from oaxe.model.layers import DecoderLayer, Encoded, Norm
from oaxe.model.masking import IGNORED
from oaxe.model.spans import spans_between
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Transformer
from oaxe.text.symbols import PAD

LABEL_SMOOTHING = 0.1


class WeakDecoder(nn.Module):
    """One layer of the same sizes, with the embedding and dropout of the Transformer beside it."""

    def __init__(
        self,
        *,
        dim: int,
        ffn: int,
        heads: int,
        max_length: int,
        dropout: float = 0.1,
        norm: Norm = "post",
        **others: Any,
    ) -> None:
        super().__init__()
        self.positions = nn.Embedding(max_length + 2, dim)
        self.input_norm = nn.LayerNorm(dim)
        self.decoder = nn.ModuleList([DecoderLayer(dim, ffn, heads, dropout, norm)])
        self.output_norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def loss(
        self, transformer: Transformer, sentence: Tensor, hidden: Tensor, mask: Tensor
    ) -> tuple[Tensor, Statistics]:
        """The summed cross entropy of all words but the first, and the same as a statistic.

        Args:
            transformer: which has decoded.
            sentence: ``(batch, words)``: BOS, words, EOS, and IGNORED behind; nothing but IGNORED
                in a row without a sentence.
            hidden: ``(batch, positions, dim)``: the states of the decoder.
            mask: ``(batch, positions)`` bool, True for real positions.
        """
        wanted = sentence[:, 1:]
        inputs = torch.where(wanted == IGNORED, PAD, sentence[:, :-1])
        loss = linear_xe_loss(
            self(transformer, inputs, hidden, mask),
            transformer.output_weight,
            wanted,
            label_smoothing=LABEL_SMOOTHING,
            reduction="sum",
            capacity=None if transformer.room is None else transformer.room.words,
        )
        return loss, {"weak_loss": (loss, (wanted != IGNORED).sum())}

    def forward(
        self, transformer: Transformer, inputs: Tensor, hidden: Tensor, mask: Tensor
    ) -> Tensor:
        """``(batch, words, dim)``, of ``inputs (batch, words)`` that are padded with PAD."""
        if transformer.room is not None:
            return self._packed(transformer, inputs, hidden, mask)
        x = transformer.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        x = transformer.dropout(self.input_norm(x))
        return self.output_norm(self.decoder[0](x, None, Encoded(hidden, mask), True))

    def _packed(
        self, transformer: Transformer, inputs: Tensor, hidden: Tensor, mask: Tensor
    ) -> Tensor:
        room, real = transformer.room, inputs != PAD
        assert room is not None
        rows, seen = rows_of(real.flatten(), room.words), rows_of(mask.flatten(), room.target)
        x = transformer.embed_packed(inputs, real, rows, self.positions, None, self.input_norm)
        lengths, positions = real.sum(1), mask.sum(1)
        own = spans_between(lengths, lengths, room.words, room.words, causal=True)
        cross = spans_between(lengths, positions, room.words, room.target)
        states = seen.take(hidden.flatten(0, 1))
        given = x, own, states, cross, self.output_norm, transformer.recompute
        return rows.put(decode_flat(self.decoder, *given)).view(*inputs.shape, -1)
