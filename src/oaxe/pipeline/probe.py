"""How long an update takes on this machine, from a few of them."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from oaxe.text.corpus import Corpus, Sentences
from oaxe.text.symbols import SYMBOLS
from oaxe.training.ranks import Ranks
from oaxe.training.run import new_system
from oaxe.training.settings import build_settings
from oaxe.training.trainer import Trainer
from oaxe.training.validation import Validation

UPDATES = {"cpu": (1, 5), "cuda": (10, 10)}  # to warm up (graphs are recorded), and to measure
SECONDS = 10.0  # after which one more is enough


def seconds_an_update(
    content: Mapping[str, Any], vocab_size: int, lengths: Sequence[tuple[int, int]], device: str
) -> float:
    """Seconds of an update, measured with random words in sentences of these lengths."""
    folders = {"run": "none", "data": {**content["data"], "folder": "none"}}
    settings = build_settings({**content, **folders})
    ranks = Ranks(0, 1, torch.device(device))
    corpus = random_corpus(lengths, vocab_size, settings.model.max_length)
    system = new_system(settings, vocab_size).to(ranks.device)
    validation = Validation(corpus, settings, ranks)
    trainer = Trainer(settings, system, corpus, validation, ranks, Console(quiet=True))
    warm_up, measured = UPDATES[ranks.device.type]
    loader, begin, found = trainer.loader(), time.monotonic(), list[float]()
    try:
        for number in range(warm_up + measured):
            update = next(loader)
            start = time.monotonic()
            trainer.step(update)
            trainer.position.step += 1
            if ranks.device.type == "cuda":
                torch.cuda.synchronize()
            found.append(time.monotonic() - start)
            if number >= warm_up and time.monotonic() - begin > SECONDS:
                break
    finally:
        loader.close()
        if trainer.update.recordings:
            trainer.update.recordings.forget()
    return statistics.median(found[warm_up:])


def random_corpus(
    lengths: Sequence[tuple[int, int]], vocab_size: int, max_length: int, tokens: int = 200_000
) -> Corpus:
    """Random words; the lengths are repeated until there are enough of them for many updates."""
    rng = np.random.default_rng(1)
    once = np.minimum(np.array(lengths), max_length)
    times = 1 + tokens // int(once[:, 1].sum())

    def sentences(side: NDArray[np.int64]) -> Sentences:
        offsets = np.concatenate([[0], np.cumsum(side)]).astype(np.int64)
        return Sentences(rng.integers(len(SYMBOLS), vocab_size, offsets[-1]), offsets)

    source, target = map(sentences, np.tile(once, (times, 1)).T)
    return Corpus(source, target)
