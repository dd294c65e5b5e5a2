"""LaNMT: a latent variable for each source token says which of the translations it is to be.

Shu et al. (2020). A posterior, which sees source and target, learns to describe the target by a few
numbers for each source token; a prior, which sees the source alone, learns to guess them. They are
spread over as many positions as the target has, and the decoder predicts all words from there. The
loss is the evidence lower bound; below a number of nats for each source token, the divergence of
posterior and prior costs nothing (free bits), less and less in the second half of training.

Decoding takes the mean of the prior. Each step of refinement takes that of the posterior instead,
given what was decoded before; the length may change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oaxe.losses.arguments import leading
from oaxe.model.latent import Gaussian, GaussianLayer, LatentEmbedding, LengthTransform, divergence
from oaxe.model.length import length_loss
from oaxe.model.masking import IGNORED, causal_inputs, decoder_inputs
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.one_pass import finished, hypotheses
from oaxe.search.replay import Call, Tensors, compute, padded_source, rounded
from oaxe.search.words import likeliest
from oaxe.support.config import option
from oaxe.systems import Example, Paper, Progress, System
from oaxe.text.symbols import MASK, PAD

PAPER = Paper(
    "Latent-Variable Non-Autoregressive Neural Machine Translation with Deterministic Inference "
    "Using a Delta Posterior",
    "https://arxiv.org/abs/1908.07181",
    {"distilled": {"wmt14-en-de": 22.3}},
)
Repeats = Literal["merge", "keep"]
MOST_DIFFERENCE = 50  # of the lengths of target and source


@dataclass(frozen=True)
class Options:
    latent: int = option(8, "latent numbers of each source token", at_least=1, at_most=65_536)
    free_nats: float = option(
        1.0, "divergence for each source token that costs nothing; falls to 0 after half the run"
    )
    label_smoothing: float = option(0.1, "weight of the uniform distribution", below=1)
    # It reads the mean of all states: with 1 it draws them together before they have learned words.
    length_weight: float = option(0.1, "weight of the length loss")

    @property
    def needs_end(self) -> bool:
        return self.free_nats > 0


@dataclass(frozen=True)
class Decoding:
    refine_steps: int = option(
        1,
        "passes of the decoder; from the second on, latent numbers follow from the last output",
        at_least=1,
        at_most=1_000,
    )
    repeats: Repeats = option("merge", "equal neighbours: merge them into one, or keep them")

    def __str__(self) -> str:
        repeats = "repeats removed" if self.repeats == "merge" else "repeats kept"
        return repeats + f", {self.refine_steps} passes" * (self.refine_steps > 1)


class Model(System):
    # It has no room: the posterior would need one of its own.
    no_ncm = "its words depend on latent variables, of which decoding sees the mean"

    def __init__(self, architecture: Mapping[str, Any], options: Options) -> None:
        super().__init__(architecture, options)
        dim, latent = architecture["dim"], options.latent
        self.transformer = Transformer(**architecture, causal=False)
        # Its source is the target, and its decoder reads the source.
        self.posterior = Transformer(**architecture, causal=False)
        self.of_prior, self.of_posterior = GaussianLayer(dim, latent), GaussianLayer(dim, latent)
        self.spread = LengthTransform()
        self.latent = LatentEmbedding(latent, dim)
        self.lengths = nn.Embedding(architecture["max_length"] + 2, dim)
        self.difference = nn.Linear(dim, 2 * MOST_DIFFERENCE)

    def example(self, source: Tensor, target: Tensor) -> Example:
        inputs, wanted = decoder_inputs(target, "unobserved")
        return Example.of(source, inputs, wanted, target)

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded = self.transformer.encode(example.source)
        target = example.target.masked_fill(example.target == IGNORED, PAD)
        prior = self.of_prior(encoded.hidden)
        posterior = self.guess(example.source, target)
        z = posterior.sample() if self.training else prior.mean
        words = self.transformer.cross_entropy(
            self.decode(z, example.mask, encoded), example.target, self.options.label_smoothing
        )
        lengths, statistics = self.length_loss(z, encoded, example.length)
        nats = divergence(posterior, prior).sum(2).where(encoded.mask, 0)
        free = self.options.free_nats * (2 - 2 * progress.share).clamp(max=1).float()
        paid = torch.maximum(nats, free).where(encoded.mask, 0).sum()
        statistics |= {
            "loss": (words, example.n_words),
            "divergence": (nats.sum(), encoded.mask.sum()),
        }
        return words + self.options.length_weight * lengths + paid, statistics

    def guess(self, source: Tensor, target: Tensor) -> Gaussian:
        """The posterior, given a target: ``(batch, source_len, latent)``."""
        _, ended = causal_inputs(target)
        encoded = self.posterior.encode(ended.masked_fill(ended == IGNORED, PAD))
        return self.of_posterior(self.posterior.decode(source, source != PAD, encoded))

    def decode(self, z: Tensor, mask: Tensor, encoded: Encoded) -> Tensor:
        """Hidden states, ``(batch, target_len, dim)``, of ``z (batch, source_len, latent)``."""
        more = self.latent(self.spread(z, encoded.mask, mask)) + self.lengths(mask.sum(1, True))
        return self.transformer.decode(torch.where(mask, MASK, PAD), mask, encoded, more)

    def differences(self, z: Tensor, encoded: Encoded) -> Tensor:
        """Logits ``(batch, 2 * MOST_DIFFERENCE)``: how much longer the target is."""
        real = encoded.mask.unsqueeze(2)
        states = (encoded.hidden + self.latent(z)).where(real, 0)
        return self.difference(states.sum(1) / real.sum(1).clamp(min=1))

    def length_loss(self, z: Tensor, encoded: Encoded, length: Tensor) -> tuple[Tensor, Statistics]:
        difference = length - encoded.mask.sum(1) + MOST_DIFFERENCE
        wanted = difference.clamp(0, 2 * MOST_DIFFERENCE - 1)
        logits = self.differences(z, encoded)
        return length_loss(logits, wanted.where(length != IGNORED, IGNORED))

    def length(self, z: Tensor, encoded: Encoded) -> Tensor:
        """``(batch,)``: the likeliest length."""
        difference = self.differences(z, encoded).argmax(1) - MOST_DIFFERENCE
        return (encoded.mask.sum(1) + difference).clamp(1, self.max_length)

    @torch.no_grad()
    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        recorded = call is not compute
        if recorded:
            source = padded_source(source, self.max_length)
        # What a call returns is valid until the next one only.
        hidden, seen, z, length = (x.clone() for x in call(encode, self, source))
        for step in range(1, decoding.refine_steps + 1):
            longest = int(length.max())  # device sync
            if recorded:
                longest = rounded(longest, self.max_length)
            mask = leading(length, longest)
            tokens, log_probs = call(decode, self, mask, hidden, seen, z, everywhere=recorded)
            if step < decoding.refine_steps:
                z, length = (x.clone() for x in call(refine, self, source, hidden, seen, tokens))
        found = finished(tokens, log_probs, log_probs.sum(1), mask, decoding.repeats, 1.0)
        return hypotheses(*found, batch=len(source))


def encode(model: Model, source: Tensor) -> Tensors:
    """Hidden states and mask of the source, the mean of the prior, and the length it is for."""
    encoded = model.transformer.encode(source)
    z = model.of_prior(encoded.hidden).mean
    return encoded.hidden, encoded.mask, z, model.length(z, encoded)


def decode(
    model: Model, mask: Tensor, hidden: Tensor, seen: Tensor, z: Tensor, *, everywhere: bool
) -> Tensors:
    """The likeliest word of each position, PAD where there is none, and its log-probability."""
    states = model.decode(z, mask, Encoded(hidden, seen))
    return likeliest(model.transformer, states, mask, may_be_blank=False, everywhere=everywhere)


def refine(model: Model, source: Tensor, hidden: Tensor, seen: Tensor, tokens: Tensor) -> Tensors:
    """The mean of the posterior, given an output, and the length it is for."""
    z = model.guess(source, tokens).mean
    return z, model.length(z, Encoded(hidden, seen))
