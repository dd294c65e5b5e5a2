"""CTC with glancing: as CTC, but it learns from inputs that reveal part of an alignment.

As Gu and Kong (2021) and Qian et al. (2021) have it. Every update decodes twice. The first pass,
without gradient, has a likeliest alignment of the target, which gives each position a word or a
blank; the positions where the model would say something else are wrong. A share of their number, at
random positions, shows the second pass its label, a blank as BLANK, in place of the source token.
The loss is that of CTC, over all positions and alignments.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oaxe.model.masking import IGNORED, drawn
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded
from oaxe.search.words import likeliest
from oaxe.support.config import option
from oaxe.systems import Example, Paper, Progress, ctc
from oaxe.systems.ctc import Decoding as Decoding

PAPER = Paper(
    "Fully Non-autoregressive Neural Machine Translation: Tricks of the Trade",
    "https://aclanthology.org/2021.findings-acl.11",
    {"distilled": {"wmt14-en-de": 27.2, "wmt14-de-en": 31.4}},
)


@dataclass(frozen=True)
class Options(ctc.Options):
    start: float = option(0.5, "revealed labels for each wrong one, at the start", at_most=1)
    end: float = option(0.3, "the same at the end of training; linear in between", at_most=1)

    @property
    def needs_end(self) -> bool:
        return self.start != self.end


class Model(ctc.Model):
    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded = self.transformer.encode(example.source)
        if not self.training:
            return self.learn(example, example.inputs, encoded)
        share = progress.between(self.options.start, self.options.end)
        inputs, seen = self.glance(example, encoded, share)
        loss, statistics = self.learn(example, inputs, encoded)
        return loss, statistics | seen

    @torch.no_grad()
    def glance(
        self, example: Example, encoded: Encoded, share: Tensor
    ) -> tuple[Tensor, Statistics]:
        """Inputs that reveal some labels; how many, and how many were wrong, of all positions."""
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        labels = self.best_path(hidden, example)
        said, _ = likeliest(
            self.transformer, hidden, example.mask, may_be_blank=True, everywhere=True, scored=False
        )
        aligned = labels != IGNORED  # all positions, unless the target does not fit
        wrong = (aligned & (said != labels)).sum(1, keepdim=True)
        revealed = drawn(aligned, (share * wrong).floor())
        n_positions = example.mask.sum()
        seen = {"revealed": (revealed.sum(), n_positions), "wrong": (wrong.sum(), n_positions)}
        return torch.where(revealed, labels, example.inputs), seen
