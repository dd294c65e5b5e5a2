"""GLAT: the glancing Transformer, which learns from inputs that reveal part of the target.

Every update decodes twice. The first pass, without gradient, shows how many words the model gets
wrong; a share of that number of target words, at random positions, is revealed to the second pass,
which learns the others. Easy sentences are thus trained without help, hard ones as fill-in.

Masked positions read MASK, as in the CMLM; the paper copies source embeddings there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oaxe.model.masking import IGNORED, drawn
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded
from oaxe.search.one_pass import log_likelihood, predict
from oaxe.search.options import LengthDecoding
from oaxe.support.config import option
from oaxe.systems import Example, LengthSystem, Paper, Progress
from oaxe.text.plans import Room

PAPER = Paper(
    "Glancing Transformer for Non-Autoregressive Neural Machine Translation",
    "https://aclanthology.org/2021.acl-long.155",
    {"distilled": {"wmt14-en-de": 25.2, "wmt14-de-en": 29.8}},
)


@dataclass(frozen=True)
class Options:
    start: float = option(0.5, "revealed words for each wrong one, at the start", at_most=1)
    end: float = option(0.3, "the same at the end of training; linear in between", at_most=1)
    label_smoothing: float = option(0.1, "weight of the uniform distribution", below=1)
    length_weight: float = option(1.0, "weight of the length loss")

    @property
    def needs_end(self) -> bool:
        return self.start != self.end


Decoding = LengthDecoding


class Model(LengthSystem):
    log_likelihood = log_likelihood

    def room(self, rows: int, source: int, target: int) -> Room:
        return Room(source + rows, target)  # LENGTH

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded, length_logits = self.length.encode(self.transformer, example.source)
        revealed = torch.zeros_like(example.mask)
        statistics: Statistics = {}
        if self.training:
            share = progress.between(self.options.start, self.options.end)
            revealed, n_wrong = self.glance(example, encoded, share)
            statistics = {
                "revealed": (revealed.sum(), example.n_words),
                "wrong": (n_wrong, example.n_words),
            }
        hidden = self.transformer.decode(
            torch.where(revealed, example.target, example.inputs), example.mask, encoded
        )
        loss = self.transformer.cross_entropy(
            hidden, example.target.masked_fill(revealed, IGNORED), self.options.label_smoothing
        )
        n_learned = example.n_words - revealed.sum()
        lengths, of_lengths = self.length.loss(length_logits, example.length)
        statistics |= {"loss": (loss, n_learned), **of_lengths}
        # The trainer divides by all words: this makes it a mean over those that are learned.
        scale = example.n_words / n_learned.clamp(min=1)
        return scale * loss + self.options.length_weight * lengths, statistics

    @torch.no_grad()
    def glance(self, example: Example, encoded: Encoded, share: Tensor) -> tuple[Tensor, Tensor]:
        """``(batch, length)`` bool: the positions to reveal; and how many words were wrong."""
        words, _ = predict(
            self.transformer, encoded, example.inputs, example.mask, example.mask,
            may_be_blank=False, everywhere=True,
        )  # fmt: skip
        wrong = (example.mask & (words != example.target)).sum(1, keepdim=True)
        return drawn(example.mask, (share * wrong).floor()), wrong.sum()
