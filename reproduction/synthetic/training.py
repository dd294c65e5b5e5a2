"""Training on the synthetic task: models that share a task, a seed and their pre-training."""

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

from oaxe.systems.cmlm import Model
from oaxe.text.corpus import Corpus
from oaxe.text.symbols import SYMBOLS
from oaxe.training.checkpoint import load_checkpoint
from oaxe.training.ranks import Ranks, join
from oaxe.training.run import new_system
from oaxe.training.settings import Settings
from oaxe.training.trainer import BEST, INTERRUPTED, Trainer
from oaxe.training.validation import Validation
from reproduction.folder import Folder, Result, read_json, validations
from reproduction.jobs import StoppedError
from reproduction.synthetic.recipes import METHODS, PRETRAINING, Recipe
from reproduction.synthetic.scores import Scores, outputs, score
from reproduction.synthetic.task import SPLITS

EXAMPLES = 20  # outputs that are kept with a result


@dataclass
class Training:
    """Everything it writes goes to ``folder``; asked again, it resumes where it was stopped."""

    recipe: Recipe
    modes: int
    seed: int
    folder: Folder
    console: Console
    ranks: Ranks = field(default_factory=join)

    def __post_init__(self) -> None:
        self.task = self.recipe.task(self.modes)

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        return {split: self.task.corpus(split, self.seed) for split in SPLITS}

    def result(self, method: str) -> Result:
        """Train with the method and test, unless that was done."""
        path = self.folder.result(method, self.seed)
        if not path.exists():
            model, curve = self.train(method), self.curve(method)
            last = {key: curve[-1][key] for key in ("step", "seconds")}
            self.folder.write_result(
                method,
                self.seed,
                self.settings(method),
                label=METHODS[method].title,
                modes=self.modes,
                recipe=asdict(self.recipe),
                training={**last, "validations": curve},
                tests={"test": {**asdict(self.test(model)), "examples": self.examples(model)}},
            )
        return read_json(path)

    def run(self, method: str) -> Path:
        """XE after pre-training is more of the same run."""
        return self.folder.run("xe" if method == PRETRAINING else method, self.seed)

    def train(self, method: str) -> Model:
        """The model at the end of training with one of METHODS, or of PRETRAINING."""
        self.run(method).mkdir(parents=True, exist_ok=True)
        if method == "xe":
            self.pretrained()  # before XE continues in the same folder
        fine_tunes = method != PRETRAINING and METHODS[method].pretrained
        model = self.new_model(method, self.pretrained() if fine_tunes else None)
        settings = self.settings(method)

        def measure(validation: Validation) -> float:
            if self.recipe.best_loss:
                return -validation.statistics(model)["loss"]
            return self.test(model, "valid").exact_match

        validation = Validation(
            self.corpora["valid"],
            settings,
            self.ranks,
            score=measure,
            metric="negative_loss" if self.recipe.best_loss else "exact_match",
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
        if self.recipe.best_loss:
            step = int(trainer.position.best[0]["step"])
            best, _ = load_checkpoint(self.run(method) / BEST / f"step-{step:08d}")
            model.load_state_dict(best["model"])
        return model

    def settings(self, method: str) -> Settings:
        run = str(self.run(method))
        return self.recipe.settings(method, run=run, seed=self.seed, bf16=self.bf16)

    def new_model(self, method: str, weights: dict[str, Tensor] | None = None) -> Model:
        """With the given weights, or those that every model of this seed begins with."""
        torch.manual_seed(self.seed)
        model = new_system(self.settings(method), self.task.vocab_size)
        assert isinstance(model, Model)
        if weights is not None:
            model.load_state_dict(weights)
        return model.to(self.ranks.device)

    def pretrained(self) -> dict[str, Tensor]:
        """Weights after ``recipe.xe_updates`` of XE."""
        path = self.folder.run(PRETRAINING, self.seed).with_suffix(".safetensors")
        if not path.exists():
            weights = self.train(PRETRAINING).state_dict()
            unfinished = path.with_suffix(".part")
            save_file({name: w.cpu().contiguous() for name, w in weights.items()}, unfinished)
            unfinished.rename(path)
        return load_file(path)

    def test(self, model: Model, split: str = "test") -> Scores:
        corpus = self.corpora[split]
        with self.autocast():
            return score(self.task, corpus, *outputs(model, corpus))

    def examples(self, model: Model) -> list[dict[str, Any]]:
        """The first test pairs and the model's outputs, as numbers from 1 on."""
        test = self.corpora["test"]
        few = Corpus(test.sources.first(EXAMPLES), test.targets.first(EXAMPLES))
        with self.autocast():
            found, _ = outputs(model, few)
        return [
            {"source": numbers(source), "target": numbers(target), "output": numbers(output)}
            for source, target, output in zip(few.sources, few.targets, found, strict=True)
        ]

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.bf16)

    @property
    def bf16(self) -> bool:
        return self.ranks.device.type == "cuda"

    def curve(self, method: str) -> list[dict[str, float]]:
        """All validations so far, those of pre-training included."""
        points = validations(self.run(method), "step", "seconds", "loss", "exact_match")
        if not METHODS[method].pretrained or not points:
            return points
        switch = self.recipe.xe_updates
        before = [point for point in self.curve("xe") if point["step"] <= switch]
        for point in points:
            point["step"] += switch
            point["seconds"] += before[-1]["seconds"]
        return before + points


def numbers(tokens: Iterable[int]) -> list[int]:
    """Token ids as the numbers that readers see, from 1 on."""
    return [int(token) - len(SYMBOLS) + 1 for token in tokens]
