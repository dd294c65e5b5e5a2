"""Transformer: the autoregressive model, teacher and baseline of all others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from oaxe.model.masking import causal_inputs
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Transformer
from oaxe.search.beam import beam_search
from oaxe.search.hypothesis import Hypothesis, length_penalty
from oaxe.search.replay import Call, compute
from oaxe.support.config import option
from oaxe.systems import Example, Paper, Progress, System
from oaxe.text.plans import Room

PAPER = Paper(
    "Attention Is All You Need", "https://arxiv.org/abs/1706.03762", {"raw": {"wmt14-en-de": 27.3}}
)


@dataclass(frozen=True)
class Options:
    label_smoothing: float = option(
        0.1, "weight of the uniform distribution in the target", below=1
    )


@dataclass(frozen=True)
class Decoding:
    beam: int = option(1, "beam width; 1 is greedy search", at_least=1, at_most=1_000)
    length_penalty: float = length_penalty()
    max_ratio: float = option(
        2.0, "most target subwords for each of the source, and 10 more", at_most=1_000
    )

    def __str__(self) -> str:
        penalty = f", length penalty {self.length_penalty:g}" * (self.length_penalty != 1)
        ratio = f", length ratio up to {self.max_ratio:g}" * (self.max_ratio != 2)
        return f"beam {self.beam}" + " (greedy)" * (self.beam == 1) + penalty + ratio


class Model(System):
    refills = True
    no_ncm = "it chooses word by word, each after having seen those before"

    def __init__(self, architecture: Mapping[str, Any], options: Options) -> None:
        super().__init__(architecture, options)
        self.transformer = Transformer(**architecture, causal=True)

    def example(self, source: Tensor, target: Tensor) -> Example:
        inputs, wanted = causal_inputs(target)
        return Example.of(source, inputs, wanted, target)

    def room(self, rows: int, source: int, target: int) -> Room:
        return Room(source, target + rows)  # BOS

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        encoded = self.transformer.encode(example.source)
        hidden = self.transformer.decode(example.inputs, example.mask, encoded)
        loss = self.transformer.cross_entropy(hidden, example.target, self.options.label_smoothing)
        return loss, {"loss": (loss, example.n_words)}

    def translate(
        self,
        source: Tensor,
        decoding: Decoding,
        call: Call = compute,
        batch_tokens: int | None = None,
    ) -> list[list[Hypothesis]]:
        return beam_search(
            self.transformer, source, **vars(decoding), batch_tokens=batch_tokens, call=call
        )

    def rows(self, decoding: Decoding) -> int:
        return decoding.beam
