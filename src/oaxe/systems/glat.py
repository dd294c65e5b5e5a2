"""GLAT: the glancing Transformer, which learns from inputs that reveal part of the target.

Every update decodes twice. The first pass, without gradient, shows how many words the model gets
wrong; a share of that number of target words, at random positions, is revealed to the second pass,
which learns the others. Easy sentences are thus trained without help, hard ones as fill-in.

Masked positions read MASK, as in the CMLM; the paper copies source embeddings there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oaxe.losses import linear_xe_loss
from oaxe.model.length import LengthPredictor
from oaxe.model.masking import IGNORED, decoder_inputs, drawn
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.one_pass import predict, translate_lengths
from oaxe.search.options import LengthDecoding
from oaxe.search.replay import Call, compute
from oaxe.support.config import option
from oaxe.systems import Example, Paper, Progress, System, cmlm

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


class Model(System):
    log_likelihood = cmlm.Model.log_likelihood
    weights_from = cmlm.Model.weights_from
    room = cmlm.Model.room

    def __init__(self, architecture: Mapping[str, Any], options: Options) -> None:
        super().__init__(architecture, options)
        self.transformer = Transformer(**architecture, causal=False)
        self.length = LengthPredictor(architecture["dim"], architecture["max_length"])

    def example(self, source: Tensor, target: Tensor) -> Example:
        inputs, wanted = decoder_inputs(target, "unobserved")
        return Example.of(source, inputs, wanted, target)

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded, length_logits = self.length.encode(self.transformer, example.source)
        revealed = torch.zeros_like(example.mask)
        statistics: Statistics = {}
        if self.training:
            share = self.options.start + (self.options.end - self.options.start) * progress.share
            revealed, n_wrong = self.glance(example, encoded, share)
            statistics = {
                "revealed": (revealed.sum(), example.n_words),
                "wrong": (n_wrong, example.n_words),
            }
        hidden = self.transformer.decode(
            torch.where(revealed, example.target, example.inputs), example.mask, encoded
        )
        loss = linear_xe_loss(
            hidden,
            self.transformer.output_weight,
            example.target.masked_fill(revealed, IGNORED),
            label_smoothing=self.options.label_smoothing,
            reduction="sum",
            capacity=self.transformer.capacity,
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

    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        return translate_lengths(
            self,
            source,
            length_candidates=decoding.length_candidates,
            length_share=decoding.length_share,
            repeats=decoding.repeats,
            length_penalty=decoding.length_penalty,
            call=call,
        )

    def rows(self, decoding: Decoding) -> int:
        return decoding.length_candidates
