"""What is trained in the benchmark of training; light enough to be sent to another process."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import corpus_like_news
from oaxe.support.config import override
from oaxe.support.errors import UserError
from oaxe.systems import System
from oaxe.text.corpus import Corpus
from oaxe.text.manifest import read_manifest
from oaxe.training.ranks import Ranks
from oaxe.training.run import new_system
from oaxe.training.settings import Settings, build_settings

NEVER = 10**9  # updates


@dataclass(frozen=True)
class Experiment:
    system: str
    loss: str | None  # of a CMLM
    data: Path | None  # prepared; None: a synthetic corpus
    vocab: int  # of the synthetic corpus, and so are corpus_tokens
    corpus_tokens: int
    batch_tokens: int
    device: str
    seed: int
    changes: Sequence[str] = ()  # section.key=value

    def __post_init__(self) -> None:
        if self.loss and self.system != "cmlm":
            raise UserError(f"--loss is that of a CMLM; {self.system} has its own, leave it out")

    def settings(self, size: str, update_tokens: int, folder: str) -> Settings:
        content: dict[str, Any] = {
            "run": folder,
            "data": {
                "folder": str(self.data or ""),
                "update_tokens": update_tokens,
                "batch_tokens": self.batch_tokens,
            },
            "model": {"system": self.system, "size": size},
            "optim": {"clip": 1.0},
            "validation": {"every": NEVER},
            "train": {
                "steps": NEVER,
                "save_every": NEVER,
                "precision": "fp32" if self.device == "cpu" else "bf16",
                "seed": self.seed,
            },
        }
        if self.loss:
            content["cmlm"] = {"loss": self.loss}
        for change in self.changes:
            override(content, change)
        return build_settings(content)

    @cached_property
    def corpus(self) -> Corpus:
        if self.data is not None:
            return Corpus.open(self.data, "train")
        rng = np.random.default_rng(self.seed)
        return corpus_like_news(rng, self.corpus_tokens, self.vocab)

    @property
    def vocab_size(self) -> int:
        return self.vocab if self.data is None else read_manifest(self.data).vocab_size

    @property
    def ranks(self) -> Ranks:
        return Ranks(0, 1, torch.device(self.device))

    def new_system(self, settings: Settings) -> System:
        torch.manual_seed(self.seed)
        return new_system(settings, self.vocab_size).to(self.device)
