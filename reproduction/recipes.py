"""How long, how fast and how large: one table to edit, by preset and data set.

tiny    the first 2,000 pairs, a CPU, minutes: whether everything works; its numbers mean nothing
laptop  two CPU cores, a quarter of an hour a system: two layers of 128 dimensions, Multi30k
small   one GPU, for the data sets that fit there: Transformer-base; small models for Multi30k
paper   the paper's own settings (section 4.1), for its own data
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from oaxe.support.errors import UserError
from oaxe.systems import section
from oaxe.text.datasets.catalogue import find
from oaxe.training.settings import Settings, build_settings
from reproduction.experiment import Experiment


@dataclass(frozen=True)
class Stage:
    """How the experiments of one stage are trained."""

    steps: int
    lr: float
    warmup: int
    every: int = 0  # updates between validations; 0: once an epoch
    patience: int = 0
    average: int = 5  # best checkpoints
    epochs: int = 0
    decay: str = "inverse-sqrt"
    clip: float = 0.0
    ema: float = 0.0
    batch_tokens: int = 0  # 0: the recipe's


@dataclass(frozen=True)
class Recipe:
    """Everything about one data set that is not the data set's own."""

    at: Stage  # the teacher, and the 12-1 model
    lm: Stage
    cmlm: Stage
    finetune: Stage
    equal: Stage  # from a Transformer: CTC with glancing, the DAG, and all systems on equal terms
    ngrams: Stage  # fine-tuning of the first two
    update_tokens: int
    batch_tokens: int = 16_384
    size: str = "base"
    teacher: str = "base"
    deep: str = "12-1"
    dropout: float = 0.3
    max_length: int = 256  # subwords; longer training pairs are dropped
    bf16: bool = True
    vocab_size: int | None = None  # None: what suits the data set
    pairs: int | None = None  # training pairs, the first so many; None: all
    held_out: int | None = None  # sentences of each validation and test set; None: all
    lengths: tuple[int, ...] = (10, 20, 30, 40, 50)  # the most words of the length buckets
    raw: Mapping[str, Stage] = field(default_factory=dict)  # stages that differ on raw data

    def stage(self, one: Experiment) -> Stage:
        # Patience could end a whole training before the loss has changed.
        steps = self.cmlm.steps + self.finetune.steps
        stages = {
            "teacher": self.at,
            "deep": self.at,
            "lm": self.lm,
            "cmlm": self.cmlm,
            "finetune": self.finetune,
            "whole": replace(self.cmlm, steps=steps, patience=0),
            "student": self.at,
            "equal": self.equal,
            "ngrams": self.ngrams,
            "equal-finetune": replace(self.ngrams, steps=self.equal.steps),  # a share of them
        }
        found = stages[one.stage]
        if one.data == "raw":
            found = self.raw.get(one.stage, found)
        steps = max(round(found.steps * one.share), 1) if found.steps else 0
        return replace(found, steps=steps, lr=found.lr * one.rate)

    def settings(
        self,
        one: Experiment,
        *,
        run: str,
        data: str,
        seed: int,
        init_from: str | None,
        references: Sequence[str] = (),
    ) -> Settings:
        stage = self.stage(one)
        sizes = {"teacher": self.teacher, "deep": self.deep}
        sections: dict[str, dict[str, Any]] = {
            "data": {
                "folder": data,
                "references": references,
                "update_tokens": round(self.update_tokens * one.tokens),
                "batch_tokens": stage.batch_tokens or self.batch_tokens,
            },
            "model": {
                "size": sizes.get(one.stage, self.size),
                "dropout": self.dropout,
                "max_length": self.max_length,
                # Twelve layers with norms after each did not learn at these rates.
                "norm": "pre" if one.stage == "deep" else "post",
            },
            "optim": {name: getattr(stage, name) for name in ("lr", "warmup", "decay", "clip")},
            "validation": {
                "every": stage.every,
                "patience": stage.patience,
                "keep": stage.average,
                "average": stage.average,
            },
            "train": {
                "steps": stage.steps,
                "epochs": stage.epochs,
                "ema": stage.ema,
                "init_from": init_from,
                "precision": "bf16" if self.bf16 else "fp32",
                "seed": seed,
                "log_every": min(50, max(stage.steps // 4, 1)) if stage.steps else 50,
            },
        }
        for name, values in one.changes.items():
            sections[name] |= values
        return training_settings(
            one.system, one.options, run=run, decoding=one.decoding, **sections
        )


def training_settings(system: str, options: Mapping[str, Any], **sections: Any) -> Settings:
    """Settings of the toolkit, from its sections and the options of a system.

    How the toolkit names a system and its options is known here alone.
    """
    model = {"system": system, **sections.pop("model")}
    return build_settings({**sections, "model": model, section(system): options})


linear = partial(Stage, decay="linear", clip=1.0)  # a rate that falls to zero
ANY = "any"  # data set
# Section 4.1: 128K tokens an update, 10K updates of warm-up to 5e-4, 300K updates, the 5 best
# averaged; fine-tuning 10 epochs, 5K updates of warm-up to 5e-6, the best checkpoint. The paper's
# language models are not its own.
PAPER = Recipe(
    at=Stage(300_000, 5e-4, 10_000),
    lm=Stage(100_000, 5e-4, 10_000),
    cmlm=Stage(300_000, 5e-4, 10_000),
    finetune=Stage(0, 5e-6, 5_000, epochs=10, average=1),
    # Huang et al. (2022): 300K updates of half the tokens.
    equal=Stage(150_000, 5e-4, 10_000, ema=0.999),
    ngrams=Stage(10_000, 2e-4, 500, average=1),  # Shao et al. (2022, 2023): 5K or 6K of 256K tokens
    update_tokens=131_072,
)
PRESETS: dict[str, dict[str, Recipe]] = {
    "tiny": {
        ANY: Recipe(
            at=Stage(60, 2e-3, 20, every=30),
            lm=Stage(40, 2e-3, 20, every=20),
            cmlm=Stage(60, 2e-3, 20, every=30),
            finetune=Stage(20, 5e-4, 5, every=10),
            equal=Stage(60, 2e-3, 20, every=30, ema=0.9),
            ngrams=Stage(20, 5e-4, 5, every=10, ema=0.9),
            update_tokens=1_024, batch_tokens=2_048, size="tiny", teacher="tiny", deep="tiny",
            dropout=0.1, bf16=False, vocab_size=2_000, pairs=2_000, held_out=100,
        ),
    },
    "laptop": {
        "multi30k-en-de": Recipe(
            at=Stage(5_000, 1e-3, 400, every=1_000),
            lm=Stage(4_000, 1e-3, 400, every=500),
            cmlm=linear(1_200, 1.5e-3, 150, every=240),
            finetune=linear(240, 3e-4, 40, every=60),
            equal=linear(1_200, 1.5e-3, 150, every=240, ema=0.99),
            ngrams=linear(120, 2e-4, 20, every=40, ema=0.99),
            update_tokens=2_048, batch_tokens=4_096, size="tiny", teacher="tiny", deep="tiny",
            dropout=0.1, vocab_size=4_000, lengths=(8, 12, 16, 20),
        ),
    },
    "small": {
        "multi30k-en-de": Recipe(
            at=Stage(1_750, 5e-4, 1_000, every=250, patience=8),
            lm=Stage(3_000, 5e-4, 1_000, every=250, patience=4),
            cmlm=linear(3_000, 1e-3, 1_000, every=500),
            finetune=linear(600, 2e-4, 100, every=100),
            equal=linear(2_000, 1e-3, 300, every=250, ema=0.999),
            ngrams=linear(300, 2e-4, 50, every=50, ema=0.99),
            update_tokens=16_384, size="small", lengths=(8, 12, 16, 20),
        ),
        "tatoeba-en-de": Recipe(
            at=Stage(4_000, 5e-4, 1_000, every=500, patience=6),
            lm=Stage(3_000, 5e-4, 1_000, every=500, patience=4),
            cmlm=linear(5_000, 7e-4, 1_000, every=500),
            finetune=linear(600, 2e-4, 100, every=100),
            equal=linear(2_500, 5e-4, 300, every=500, ema=0.999),
            ngrams=linear(300, 2e-4, 50, every=50, ema=0.99),
            update_tokens=16_384, lengths=(5, 7, 9, 12),
            raw={
                "cmlm": Stage(5_000, 5e-4, 1_000, every=500, patience=6),
                "finetune": Stage(600, 1e-4, 100, every=100, patience=6),
            },
        ),
        "tatoeba-en-ja": Recipe(
            at=Stage(3_000, 5e-4, 1_000, every=500, patience=6),
            lm=Stage(2_000, 5e-4, 1_000, every=500, patience=4),
            cmlm=Stage(4_000, 3e-4, 2_000, every=500, patience=6),
            finetune=Stage(500, 1e-4, 100, every=100, patience=6),
            equal=linear(2_000, 5e-4, 300, every=500, ema=0.999),
            ngrams=linear(300, 2e-4, 50, every=50, ema=0.99),
            update_tokens=16_384, lengths=(5, 7, 9, 12),
        ),
        "europarl-en-de": Recipe(
            at=Stage(4_000, 5e-4, 1_000, every=500, patience=6),
            lm=Stage(3_000, 5e-4, 1_000, every=500, patience=4),
            cmlm=linear(8_000, 5e-4, 2_000, every=1_000),
            finetune=linear(600, 2e-4, 100, every=100),
            equal=linear(2_000, 5e-4, 300, every=500, ema=0.999, batch_tokens=16_384),
            ngrams=linear(300, 2e-4, 50, every=50, ema=0.99, batch_tokens=16_384),
            update_tokens=32_768, batch_tokens=32_768, dropout=0.1,
        ),
    },
    "paper": {
        "wmt14-en-de": replace(PAPER, teacher="big"),
        "wmt16-en-ro": PAPER,
        "wmt17-en-zh": replace(PAPER, teacher="big"),
        "wat17-ja-en": PAPER,
    },
}  # fmt: skip


def recipe_of(preset: str, dataset: str) -> Recipe:
    """The recipe of a data set; both directions share one."""
    recipes = PRESETS[preset]
    name, _ = find(dataset)
    found = recipes.get(name) or recipes.get(ANY)
    if found is None:
        others = [other for other, of in PRESETS.items() if name in of or ANY in of]
        raise UserError(
            f"the preset {preset} has no recipe for {dataset}; name another with --data, of "
            f"{', '.join(recipes)}; or take --preset {' or '.join(others)}"
        )
    return found
