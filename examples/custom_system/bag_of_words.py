"""A system of your own: a CMLM whose words are also trained as a bag, wherever they stand.

The additional loss asks that every target word is likely at some position: it is the cross entropy
between the words of the target and the mean of the predictions over all positions.
"""

from dataclasses import dataclass

import torch

from oaxe.losses import linear_xe_loss
from oaxe.model.masking import IGNORED
from oaxe.support.config import option
from oaxe.systems import LengthSystem, Paper

PAPER = Paper("An example", "")


@dataclass(frozen=True)
class Options:
    """The section `bag_of_words` of the YAML."""

    weight: float = option(0.5, "weight of the bag-of-words loss")


@dataclass(frozen=True)
class Decoding:
    """The section `decoding` of the YAML."""

    length_candidates: int = option(3, "lengths tried for each sentence", at_least=1)


class Model(LengthSystem):
    def forward(self, example, progress):
        encoded, length_logits = self.length.encode(self.transformer, example.source)
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        words = linear_xe_loss(
            hidden, self.transformer.output_weight, example.target, reduction="sum"
        )
        lengths, statistics = self.length.loss(length_logits, example.length)
        bag = self.bag_of_words(hidden, example)
        statistics |= {"loss": (words, example.n_words), "bag": (bag, example.n_words)}
        return words + lengths + self.options.weight * bag, statistics

    def bag_of_words(self, hidden, example):
        probability = self.transformer.logits(hidden).float().softmax(-1)  # (batch, length, vocab)
        real = example.mask.unsqueeze(2)
        mean = (probability * real).sum(1) / real.sum(1)  # (batch, vocab)
        has_loss = example.target != IGNORED
        of_words = mean.gather(1, example.target.masked_fill(~has_loss, 0))  # (batch, length)
        return -torch.where(has_loss, of_words, 1.0).clamp(min=1e-9).log().sum()
