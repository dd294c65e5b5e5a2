"""DSLP: every layer of the decoder predicts, learns, and tells the next one what it has predicted.

Deep supervision with layer-wise prediction, of Huang et al. (2022), on CTC. All layers share the
output matrix. The likeliest label of each position, as an embedding, and the state of that position
go through a linear layer to the next layer; the loss is the mean of the CTC losses of all layers.

While it is trained, some of the predicted labels are replaced by those of the likeliest alignment
of the target (mixed training), a blank of which is shown as MASK.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from oaxe.model.masking import IGNORED
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.words import likeliest
from oaxe.support.config import option
from oaxe.systems import Example, Paper, Progress, ctc
from oaxe.systems.ctc import Decoding as Decoding
from oaxe.text.symbols import BLANK, MASK

PAPER = Paper(
    "Non-Autoregressive Translation with Layer-Wise Prediction and Deep Supervision",
    "https://ojs.aaai.org/index.php/AAAI/article/view/21323",
    {
        "distilled": {"wmt14-en-de": 27.0, "wmt14-de-en": 31.6},
        "raw": {"wmt14-en-de": 24.8, "wmt14-de-en": 28.3},
    },
)


@dataclass(frozen=True)
class Options(ctc.Upsampling):
    mixed: float = option(
        0.3, "predicted labels that are replaced by those of the target, while training", at_most=1
    )


class LayerwiseTransformer(Transformer):
    """A Transformer whose decoder layers read what the layer before has predicted.

    A state s and the embedding e of its label become s + W [s; e]: with the identity apart, layers
    that were trained without predictions can begin as they are.
    """

    def __init__(self, *, dim: int, decoder_layers: int, **architecture: Any) -> None:
        super().__init__(dim=dim, decoder_layers=decoder_layers, **architecture)
        self.between = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(decoder_layers - 1))

    def decode(
        self, inputs: Tensor, mask: Tensor, encoded: Encoded, more: Tensor | None = None
    ) -> Tensor:
        assert more is None
        return self.decode_by_layer(inputs, mask, encoded, self.reader(mask))[-1]

    def reader(
        self, mask: Tensor, mix: Callable[[Tensor, Tensor], Tensor] | None = None
    ) -> Callable[[Tensor, int], Tensor]:
        """What :meth:`decode_by_layer` needs; ``mix`` replaces labels, given the states as well."""

        def read(hidden: Tensor, number: int) -> Tensor:
            labels = self.predicted(hidden, mask)
            if mix is not None:
                labels = mix(labels, hidden.detach())
            said = torch.cat([hidden, self.tokens(labels).to(hidden.dtype)], 2)
            return hidden + self.between[number](said)

        return read

    @torch.no_grad()
    def predicted(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """``(rows, length)``: the likeliest labels."""
        return likeliest(self, hidden, mask, may_be_blank=True, everywhere=True, scored=False)[0]


class Model(ctc.Model):
    transformer: LayerwiseTransformer
    transformer_type = LayerwiseTransformer

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        mix = partial(self.mix, example) if self.training and self.options.mixed else None
        states = self.transformer.decode_by_layer(
            example.inputs,
            example.mask,
            self.transformer.encode(example.source),
            self.transformer.reader(example.mask, mix),
        )
        losses = [self.objective(hidden, example) for hidden in states]
        loss = torch.stack(losses).mean()
        statistics = {
            "loss": (loss, example.n_words),
            "last_layer": (losses[-1], example.n_words),
            "impossible": ctc.impossible(example),
        }
        return loss, statistics

    @torch.no_grad()
    def mix(self, example: Example, labels: Tensor, hidden: Tensor) -> Tensor:
        """Labels, of which some are those of the likeliest alignment of the target."""
        aligned = self.best_path(hidden, example)
        replaced = torch.rand_like(labels, dtype=torch.float32) < self.options.mixed
        replaced &= aligned != IGNORED
        return torch.where(replaced, aligned.masked_fill(aligned == BLANK, MASK), labels)
