"""FlowSeq: latent vectors of the target, whose distribution given the source is a flow.

Ma et al. (2019). A posterior, which sees source and target, has a latent vector for each word; the
decoder predicts all words from there. The prior is made of normal noise by invertible functions
(:mod:`oaxe.model.flow`), each of which sees all positions and the source. The loss is the evidence
lower bound; the weight of the divergence rises over the first part of training.

Decoding predicts the length, as the CMLM does, and takes the latent vectors of noise that is 0.

The flow has one scale, where the paper splits vectors over several, and begins as it is drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from oaxe.losses.arguments import at_least_float32
from oaxe.model.flow import Flow, SourceAttention
from oaxe.model.latent import Gaussian, LatentEmbedding
from oaxe.model.masking import IGNORED
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.one_pass import finished, translate_lengths
from oaxe.search.options import LengthDecoding, Repeats
from oaxe.search.replay import Call, Tensors, compute
from oaxe.search.words import likeliest, likeliest_apart
from oaxe.support.config import option
from oaxe.support.errors import UserError
from oaxe.systems import Example, LengthSystem, Paper, Progress
from oaxe.text.symbols import MASK, PAD

PAPER = Paper(
    "FlowSeq: Non-Autoregressive Conditional Sequence Generation with Generative Flow",
    "https://aclanthology.org/D19-1437",
    {
        "distilled": {"wmt14-en-de": 21.5, "wmt14-de-en": 26.2},
        "raw": {"wmt14-en-de": 18.6, "wmt14-de-en": 23.4},
    },
)
LEAST_WEIGHT = 0.01  # of the divergence: the prior learns from the first update on


@dataclass(frozen=True)
class Options:
    latent: int = option(64, "latent numbers of each word; even", at_least=2, at_most=65_536)
    flow_steps: int = option(4, "steps of the flow", at_least=1, at_most=512)
    warmup: float = option(
        0.3, "part of the run over which the weight of the divergence rises to 1", at_most=1
    )
    word_dropout: float = option(0.2, "words that the posterior does not see", below=1)
    label_smoothing: float = option(0.1, "weight of the uniform distribution", below=1)
    length_weight: float = option(1.0, "weight of the length loss")

    def __post_init__(self) -> None:
        if self.latent % 2:
            raise UserError(f"latent must be even, as couplings halve it; got {self.latent}")

    @property
    def needs_end(self) -> bool:
        return self.warmup > 0


Decoding = LengthDecoding


class Model(LengthSystem):
    # It has no room: the layers of its flow are padded.
    no_ncm = "its words depend on latent vectors, of which decoding sees one value"

    def __init__(self, architecture: Mapping[str, Any], options: Options) -> None:
        super().__init__(architecture, options)
        dim, layers = architecture["dim"], architecture["decoder_layers"]
        self.posterior = SourceAttention(dim, 2 * options.latent, layers, architecture)
        self.flow = Flow(options.flow_steps, options.latent, architecture)
        self.latent = LatentEmbedding(options.latent, dim)

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded, length_logits = self.length.encode(self.transformer, example.source)
        lengths, statistics = self.length.loss(length_logits, example.length)
        loss = self.options.length_weight * lengths
        if self.training:
            posterior = self.guess(example, encoded)
            z = posterior.sample()
            nats = self.divergence(posterior, z, example.mask, encoded)
            statistics["divergence"] = (nats, example.n_words)
            loss = loss + self.weight(progress) * nats
        else:
            z = self.likeliest(example.mask, encoded)
        words = self.transformer.cross_entropy(
            self.decode(z, example.mask, encoded), example.target, self.options.label_smoothing
        )
        return loss + words, statistics | {"loss": (words, example.n_words)}

    def guess(self, example: Example, encoded: Encoded) -> Gaussian:
        """The posterior, ``(batch, target_len, latent)``; some of the words are not seen."""
        words = example.target.masked_fill(example.target == IGNORED, PAD)
        dropped = torch.rand_like(words, dtype=torch.float32) < self.options.word_dropout
        embedded = self.transformer.tokens(words.masked_fill(dropped, MASK))
        return Gaussian(*self.posterior(embedded, example.mask, encoded).chunk(2, 2))

    def divergence(self, posterior: Gaussian, z: Tensor, mask: Tensor, encoded: Encoded) -> Tensor:
        """log q(z) - log p(z) of a sample, over all words."""
        noise, log_determinant = self.flow(z, mask, encoded)
        standard = Gaussian(torch.zeros_like(noise), torch.zeros_like(noise))
        log_prior = standard.log_density(noise).sum(2) + log_determinant
        nats = posterior.log_density(z).sum(2) - log_prior
        return nats.where(mask, 0).sum()

    def weight(self, progress: Progress) -> Tensor:
        """The weight of the divergence."""
        share = progress.share.float()
        if self.options.warmup == 0:
            return torch.ones_like(share)
        return (share / self.options.warmup).clamp(LEAST_WEIGHT, 1)

    def likeliest(self, mask: Tensor, encoded: Encoded) -> Tensor:
        """Latent vectors ``(rows, length, latent)`` whose noise is zero."""
        noise = at_least_float32(encoded.hidden).new_zeros(*mask.shape, self.options.latent)
        return self.flow.inverse(noise, mask, encoded)

    def decode(self, z: Tensor, mask: Tensor, encoded: Encoded) -> Tensor:
        """Hidden states ``(rows, length, dim)``."""
        inputs = torch.where(mask, MASK, PAD)
        return self.transformer.decode(inputs, mask, encoded, self.latent(z))

    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        return translate_lengths(self, source, **vars(decoding), call=call, decode=decode)


def decode(
    model: Model,
    inputs: Tensor,
    mask: Tensor,
    hidden: Tensor,
    seen: Tensor,
    *,
    repeats: Repeats,
    length_penalty: float,
    everywhere: bool,
) -> Tensors:
    """For each row of ``inputs``: see :func:`oaxe.search.one_pass.hypotheses`."""
    encoded = Encoded(hidden, seen)
    states = model.decode(model.likeliest(mask, encoded), mask, encoded)
    choose = likeliest_apart if repeats == "forbid" else partial(likeliest, everywhere=everywhere)
    tokens, log_probs = choose(model.transformer, states, mask, may_be_blank=False)
    return finished(tokens, log_probs, log_probs.sum(1), mask, repeats, length_penalty)
