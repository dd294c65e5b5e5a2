"""Distillation: a teacher of random weights translates a list of sentences by beam search."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import torch

from benchmarks.experiment import Experiment
from oaxe.decoding.translator import Translator
from oaxe.distillation.distill import CPU_TOKENS, GPU_TOKENS
from oaxe.model.transformer import SIZES
from oaxe.support.timing import Timing, wall_clock
from oaxe.systems import build, transformer
from oaxe.text.subwords import Subwords

BEAM, MORE = 5, 10  # MORE: tokens that beam search allows beyond its ratio
PASSES = 3  # over the list; the first one compiles and records


class Numbers:
    """Stands in for subwords: a text is the ids of its tokens, so that any vocabulary will do."""

    model = b""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in sentence.split()] for sentence in sentences]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(map(str, row)) for row in ids]


class Distilled(NamedTuple):
    first: float  # seconds of the first pass
    later: Timing
    n_sentences: int
    source_length: float  # tokens of a sentence, on average
    target_length: float


def distil(experiment: Experiment, size: str, sentences: int) -> Distilled:
    """Translate the first sentences of the corpus, as `oaxe distill` would.

    Random weights hardly ever choose EOS, so that it is ``max_ratio`` that ends a translation: at
    the mean length of the sources, shorter ones later and longer ones earlier.
    """
    corpus = experiment.corpus
    sources = corpus.sources.first(sentences)
    n = float(np.mean(sources.lengths))
    torch.manual_seed(experiment.seed)
    longest = int(corpus.source_lengths.max())
    architecture = {
        "vocab_size": experiment.vocab_size, **SIZES[size], "max_length": max(256, longest)
    }  # fmt: skip
    model = build("transformer", architecture, transformer.Options())
    numbers = Numbers(experiment.vocab_size)
    translator = Translator(model.to(experiment.device).eval(), cast(Subwords, numbers))
    lines = numbers.decode([row.tolist() for row in sources])
    found: list[str] = []
    on_gpu = experiment.device != "cpu"

    def once() -> None:
        found[:] = translator.translate(
            lines,
            beam=BEAM,
            max_ratio=max(n - MORE, 0.0) / (n + 1),  # EOS is a token of the source, too
            bf16=on_gpu,
            batch_tokens=GPU_TOKENS if on_gpu else CPU_TOKENS,
        )

    first, *later = (wall_clock(once) for _ in range(PASSES))
    lengths = [len(row) for row in numbers.encode(found)]
    return Distilled(first, Timing(later), len(sources), n, float(np.mean(lengths)))
