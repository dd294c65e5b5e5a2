"""Language model of the target side: a Transformer without a source, for fluency."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oaxe.losses import linear_xe_loss
from oaxe.model.masking import causal_inputs
from oaxe.model.transformer import Transformer
from oaxe.systems import Example, System, transformer
from oaxe.text.plans import Room
from oaxe.text.symbols import EOS, PAD

PAPER = transformer.PAPER
Options = transformer.Options


@dataclass(frozen=True)
class Decoding:
    """It has none: it does not translate."""

    def __str__(self) -> str:
        return "does not translate"


class Model(System):
    translates = False
    no_ncm = "it does not translate"
    forward = transformer.Model.forward

    def __init__(self, architecture: Mapping[str, Any], options: transformer.Options) -> None:
        super().__init__(architecture, options)
        arguments = {**architecture, "encoder_layers": 0}
        self.transformer = Transformer(**arguments, causal=True)

    def room(self, rows: int, source: int, target: int) -> Room:
        return Room(rows, target + rows)

    def example(self, source: Tensor, target: Tensor) -> Example:
        source = torch.where(source[:, :1] == PAD, PAD, EOS)
        inputs, wanted = causal_inputs(target)
        return Example.of(source, inputs, wanted, target)

    @torch.no_grad()
    def log_likelihood(self, target: Tensor) -> Tensor:
        """``(batch,)`` float64: log P of each sentence, its end included; natural logarithm.

        Args:
            target: ``(batch, length)`` tokens without BOS and EOS, PAD on the right.
        """
        encoded = self.transformer.encode(target.new_full((1, 1), EOS))  # shared by all sentences
        inputs, wanted = causal_inputs(target)
        hidden = self.transformer.decode(inputs, inputs != PAD, encoded)
        losses = linear_xe_loss(hidden, self.transformer.output_weight, wanted, reduction="none")
        return -losses.double().sum(1)
