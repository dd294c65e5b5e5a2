"""Imputer: CTC that learns from part of an alignment, and to complete it; decoded in one pass.

Saharia et al. (2020). Every update decodes twice. The first pass, without gradient, has a likeliest
alignment of the target; a random part of it, from nothing to all, is shown to the second pass, a
blank as BLANK, in place of the source token. The loss sums over the alignments that agree with what
is shown. Decoding in one pass is that of CTC: nothing is shown.

The paper takes alignments from a CTC model that was trained before: so does a run that starts from
one (``train.init_from``), but for what has changed since.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oaxe.losses.imputer import linear_imputer_loss
from oaxe.model.masking import IGNORED
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded
from oaxe.support.config import option
from oaxe.systems import Example, Paper, Progress, ctc
from oaxe.systems.ctc import Decoding as Decoding
from oaxe.text.symbols import BLANK

PAPER = Paper(
    "Non-Autoregressive Machine Translation with Latent Alignments",
    "https://aclanthology.org/2020.emnlp-main.83",
    {"distilled": {"wmt14-en-de": 25.8, "wmt14-de-en": 28.4}, "raw": {"wmt14-en-de": 15.6}},
)


@dataclass(frozen=True)
class Options(ctc.Upsampling):
    shown: float = option(
        1.0, "most of an alignment that is shown; each sentence has a share from 0 to it", at_most=1
    )


class Model(ctc.Model):
    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded = self.transformer.encode(example.source)
        nothing = torch.full_like(example.inputs, IGNORED)
        shown = self.show(example, encoded) if self.training else nothing
        seen = shown != IGNORED
        hidden = self.transformer.decode(
            torch.where(seen, shown, example.inputs), example.mask, encoded
        )
        loss = linear_imputer_loss(
            hidden,
            self.transformer.output_weight,
            example.target,
            shown,
            blank=BLANK,
            logit_mask=example.mask,
            reduction="sum",
            capacity=self.transformer.capacity,
        )
        statistics = {
            "loss": (loss, example.n_words),
            "shown": (seen.sum(), example.mask.sum()),
            "impossible": ctc.impossible(example),
        }
        return loss, statistics

    @torch.no_grad()
    def show(self, example: Example, encoded: Encoded) -> Tensor:
        """``(batch, positions)``: labels of the likeliest alignment; IGNORED, not shown."""
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        labels = self.best_path(hidden, example)
        draws = torch.rand(len(labels), 1 + labels.shape[1], device=labels.device)
        share, draws = self.options.shown * draws[:, :1], draws[:, 1:]
        return labels.masked_fill(draws >= share, IGNORED)
