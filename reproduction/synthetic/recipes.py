"""Sizes and settings that make the synthetic task learnable, from a laptop to the paper's size.

What it takes, found by trying: positions counted from both ends (from the start alone, the model
has to work out "the third from the end" from the length), layer norm before each block, no dropout,
every decoder input a MASK for XE too, and all lengths in every update: the order of each length is
learned separately, and updates of one or two lengths make it unstable.

OaXE can take over soon after XE has learned which source positions matter. But it keeps the order
that the model prefers by then: any permutation that is the same for all sequences of one length has
no loss, also one that is half of one ordering and half of another. So the change from XE to OaXE is
gradual, with the paper's T_m: while some XE is left, it tells which orders there are.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from oaxe.training.settings import Settings
from reproduction.recipes import training_settings
from reproduction.synthetic.task import Task


class Method(NamedTuple):
    title: str
    loss: str
    pretrained: bool  # starts from XE
    annealed: bool  # changes from XE to the loss by T_m


METHODS = {
    "xe": Method("XE", "xe", False, False),
    "axe": Method("AXE after XE", "axe", True, False),
    "oaxe": Method("OaXE after XE, annealed", "oaxe", True, True),
    "oaxe-pretrained": Method("OaXE after XE", "oaxe", True, False),
    "oaxe-annealed": Method("OaXE, annealed", "oaxe", False, True),
    "oaxe-scratch": Method("OaXE from random weights", "oaxe", False, False),
}
PRETRAINING = "pretraining"


@dataclass(frozen=True)
class Recipe:
    """One size of the experiment; all methods have the same number of updates in all."""

    numbers: int
    shortest: int
    longest: int
    train: int  # pairs
    size: str  # of the model, see oaxe.model.transformer.SIZES
    update_tokens: int
    lr: float
    warmup: int
    xe_updates: int  # of pre-training
    updates: int  # in all
    validate_every: int  # updates
    valid: int = 500  # pairs
    test: int = 1_000
    positions: str = "both"
    norm: str = "pre"
    dropout: float = 0.0
    label_smoothing: float = 0.0
    inputs: str | None = "unobserved"  # None: what suits the loss
    best_loss: bool = False  # test the weights with the lowest validation loss, not the last ones

    def task(self, modes: int) -> Task:
        names = [field.name for field in fields(Task) if field.name != "modes"]
        return Task(modes, **{name: getattr(self, name) for name in names})

    def settings(self, method: str, *, run: str, seed: int, bf16: bool) -> Settings:
        """For ``method``, or for PRETRAINING, which is the beginning of ``"xe"``."""
        _, loss, fine_tunes, anneals = METHODS["xe" if method == PRETRAINING else method]
        updates = self.xe_updates if method == PRETRAINING else self.updates
        mean_length = (self.shortest + self.longest) / 2
        return training_settings(
            "cmlm",
            {
                "loss": loss,
                "inputs": self.inputs,
                "label_smoothing": self.label_smoothing,
                "annealing": anneals,
                # T_m counts epochs and fine-tuning is a fraction of one: a larger c starts near 1
                "annealing_c": 1e4 if fine_tunes else 16.0,
                "annealing_lambda": 0.7 if fine_tunes else 0.95,
            },
            run=run,
            data={
                "folder": "synthetic",
                "update_tokens": self.update_tokens,
                # one batch an update, padding included
                "batch_tokens": int(self.update_tokens * (self.longest + 1) / mean_length),
                "mix_lengths": True,
            },
            model={
                "size": self.size,
                "positions": self.positions,
                "norm": self.norm,
                "dropout": self.dropout,
                "max_length": self.longest,
            },
            optim={
                "lr": self.lr / 2 if fine_tunes else self.lr,
                "warmup": self.warmup // 2 if fine_tunes else self.warmup,
                "betas": [0.9, 0.98],
                "weight_decay": 0.0,
                "clip": 1.0,
            },
            validation={"every": self.validate_every, "keep": 1, "average": 1},
            train={
                "steps": updates - self.xe_updates if fine_tunes else updates,
                "precision": "bf16" if bf16 else "fp32",
                "seed": seed,
                "log_every": self.validate_every,
                "save_every": 10 * self.validate_every,
            },
        )


DEMO = Recipe(
    numbers=50, shortest=6, longest=12, train=50_000, size="tiny", update_tokens=2_048,
    lr=1e-3, warmup=100, xe_updates=400, updates=550, validate_every=25, valid=200, test=500,
)  # fmt: skip

PRESETS = {
    "tiny": replace(DEMO, numbers=30, longest=10, update_tokens=1_024),
    "small": Recipe(
        numbers=2_000, shortest=10, longest=40, train=300_000, size="small", update_tokens=16_384,
        lr=1e-3, warmup=200, xe_updates=800, updates=1_000, validate_every=50,
    ),
    # The paper's data; its model, but for the positions.
    "full": Recipe(
        numbers=32_000, shortest=10, longest=100, train=300_000, size="base", update_tokens=24_576,
        lr=5e-4, warmup=300, xe_updates=600, updates=800, validate_every=50, valid=3_000,
        test=3_000,
    ),
    # The paper's model and training as well. How many of the 30K updates are XE it does not say.
    "paper": Recipe(
        numbers=32_000, shortest=10, longest=100, train=300_000, size="base", update_tokens=131_072,
        lr=5e-4, warmup=10_000, xe_updates=25_000, updates=30_000, validate_every=125, valid=3_000,
        test=3_000, positions="start", norm="post", dropout=0.3, label_smoothing=0.1, inputs=None,
        best_loss=True,
    ),
}  # fmt: skip
