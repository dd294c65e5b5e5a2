"""One cell of the experiment: a task, a seed, and models trained on it with several methods."""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from oaxe.model.transformer import Transformer
from oaxe.support.environment import environment
from oaxe.support.files import write_whole
from oaxe.support.jobs import StoppedError
from oaxe.text.corpus import Corpus
from oaxe.text.symbols import SYMBOLS
from oaxe.training.ranks import Ranks, join
from oaxe.training.run import build_model
from oaxe.training.settings import Settings
from oaxe.training.trainer import INTERRUPTED, Trainer
from oaxe.training.validation import Validation
from reproduction.synthetic.outcome import Outcome, outcome, outputs
from reproduction.synthetic.recipe import METHODS, PRETRAINING, Recipe
from reproduction.synthetic.task import SPLITS


@dataclass
class Experiment:
    """Everything it writes goes to ``folder``; asked again, it goes on where it was stopped."""

    recipe: Recipe
    modes: int
    seed: int
    folder: Path
    console: Console
    ranks: Ranks = field(default_factory=join)

    def __post_init__(self) -> None:
        self.task = self.recipe.task(self.modes)

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        return {split: self.task.corpus(split, self.seed) for split in SPLITS}

    def result(self, method: str) -> dict[str, Any]:
        """Train with the method, unless that was done, and test; one record for its file."""
        path = self.folder / f"{method}.json"
        if not path.exists():
            model, curve = self.train(method), self.curve(method)
            result = {
                "method": method,
                "modes": self.modes,
                "seed": self.seed,
                "recipe": asdict(self.recipe),
                "environment": environment(),
                "seconds": curve[-1]["seconds"],
                **asdict(self.test(model, method)),
                "curve": curve,
                "examples": self.examples(model, method),
            }
            write_whole(path, json.dumps(result, indent=1) + "\n")
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    def train(self, method: str) -> Transformer:
        """The model at the end of training, of METHODS or of PRETRAINING."""
        # XE after pre-training is more of the same run.
        run = self.folder / ("xe" if method == PRETRAINING else method)
        run.mkdir(parents=True, exist_ok=True)
        if method == "xe":
            self.pretrained()  # before XE goes on in the same folder
        fine_tunes = method != PRETRAINING and METHODS[method].pretrained
        model = self.new_model(self.pretrained() if fine_tunes else None)
        settings = self.settings(method, run)
        validation = Validation(
            self.corpora["valid"],
            settings,
            self.ranks,
            score=lambda _: self.test(model, method, "valid").exact_match,
            metric="exact_match",
        )
        trainer = Trainer(
            settings,
            model,
            self.corpora["train"],
            validation,
            self.ranks,
            self.console,
            title=f"{method}, {self.modes} orders",
        )
        if trainer.run() == INTERRUPTED:
            raise StoppedError
        return model

    def settings(self, method: str, run: Path) -> Settings:
        return self.recipe.settings(method, run=str(run), seed=self.seed, bf16=self.bf16)

    def new_model(self, weights: dict[str, Tensor] | None) -> Transformer:
        """With the given weights, or those that every model of this seed begins with."""
        torch.manual_seed(self.seed)
        model = build_model(self.settings("xe", self.folder), self.task.vocab_size)
        if weights is not None:
            model.load_state_dict(weights)
        return model.to(self.ranks.device)

    def pretrained(self) -> dict[str, Tensor]:
        """Weights after ``recipe.xe_updates`` of XE."""
        path = self.folder / "pretrained.safetensors"
        if not path.exists():
            weights = self.train(PRETRAINING).state_dict()
            unfinished = path.with_suffix(".tmp")
            save_file({name: w.cpu().contiguous() for name, w in weights.items()}, unfinished)
            unfinished.rename(path)
        return load_file(path)

    def test(self, model: Transformer, method: str, split: str = "test") -> Outcome:
        corpus = self.corpora[split]
        with self.autocast():
            return outcome(self.task, corpus, *outputs(model, corpus, blanks=method == "axe"))

    def examples(self, model: Transformer, method: str, count: int = 20) -> list[dict[str, Any]]:
        """The first test pairs and what the model says to them, as numbers from 1 on."""
        test = self.corpora["test"]
        few = Corpus(test.sources.first(count), test.targets.first(count))
        with self.autocast():
            said, _ = outputs(model, few, blanks=method == "axe")
        return [
            {"source": numbers(source), "target": numbers(target), "output": numbers(output)}
            for source, target, output in zip(few.sources, few.targets, said, strict=True)
        ]

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.bf16)

    @property
    def bf16(self) -> bool:
        return self.ranks.device.type == "cuda"

    def curve(self, method: str) -> list[dict[str, float]]:
        """Validations from the first update on, those of pre-training included; all there are."""
        path = self.folder / method / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = [record for record in map(json.loads, lines) if record["what"] == "valid"]
        names = "step", "seconds", "loss", "exact_match"
        points = [{name: record[name] for name in names} for record in records]
        if not METHODS[method].pretrained or not points:
            return points
        switch = self.recipe.xe_updates
        before = [point for point in self.curve("xe") if point["step"] <= switch]
        for point in points:
            point["step"] += switch
            point["seconds"] += before[-1]["seconds"]
        return before + points


def numbers(tokens: Iterable[int]) -> list[int]:
    """Token ids as the numbers that people see, from 1 on."""
    return [int(token) - len(SYMBOLS) + 1 for token in tokens]
