"""Every setting of a training run: its default and what it means (``oaxe config show``).

The sections of a configuration are those below, one that is called like the system, with its
options, and one that is called ``decoding``: both are defined by the system (:mod:`oaxe.systems`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from oaxe import systems
from oaxe.model.transformer import SIZES
from oaxe.support.config import build, class_of, documented, option, read, required, to_mapping
from oaxe.support.errors import UserError, listed


@dataclass(frozen=True)
class DataSettings:
    folder: str = required("prepared folder, made by `oaxe prepare`")
    references: tuple[str, ...] = option(
        (),
        "prepared folders with other targets of the same sources, for systems that learn of them",
    )
    update_tokens: int = option(131_072, "target tokens of one update, over all GPUs", at_least=1)
    batch_tokens: int = option(
        16_384, "tokens of one batch on one device, padding included; about, if packed", at_least=1
    )
    mix_lengths: bool = option(
        False, "batches of any lengths: more padding, steadier updates; packed ones are"
    )
    packed: bool | None = option(
        None, "batches of all lengths, computed without padding; null: on a GPU in bf16"
    )


@dataclass(frozen=True)
class ModelSettings:
    system: str = option("cmlm", "see `oaxe config systems`; or a Python module of your own")
    size: Literal["tiny", "small", "base", "big", "12-1"] = option("base", "see docs/training.md")
    norm: Literal["post", "pre"] = option("post", "layer norm after or before each block")
    positions: Literal["start", "both"] = option(
        "start", "both: counted from the end of the sentence as well; not for autoregressive models"
    )
    dropout: float = option(0.3, "share of activations dropped while training", below=1)
    max_length: int = option(256, "longest sentence, in subwords", at_least=1, at_most=100_000)


@dataclass(frozen=True)
class OptimSettings:
    lr: float = option(5e-4, "peak learning rate")
    warmup: int = option(10_000, "updates of linear warm-up, before decay")
    decay: Literal["inverse-sqrt", "linear"] = option(
        "inverse-sqrt", "linear: to zero at the end of train.epochs or train.steps"
    )
    betas: tuple[float, float] = option((0.9, 0.999), "Adam", below=1)
    eps: float = option(1e-6, "Adam")
    weight_decay: float = option(0.01, "decoupled, as in AdamW")
    clip: float = option(0.0, "largest gradient norm; 0 does not clip")


@dataclass(frozen=True)
class ValidationSettings:
    every: int = option(0, "updates between validations; 0: once an epoch")
    max_sentences: int = option(0, "validate on the first N sentences only; 0: all of them")
    keep: int = option(5, "best checkpoints by BLEU that are kept", at_least=1)
    average: int = option(5, "best checkpoints averaged into the final model", at_least=1)
    choose_decoding: bool | None = option(
        None, "at the end, try options of decoding and keep the best; null: for ctc and dag"
    )
    patience: int = option(0, "stop after N validations without a better BLEU; 0: never")


@dataclass(frozen=True)
class TrainSettings:
    steps: int = option(0, "stop after this many updates; 0: no limit")
    epochs: int = option(0, "stop after this many epochs; 0: no limit")
    minutes: float = option(0.0, "stop after this much time, validation not counted; 0: no limit")
    init_from: str | None = option(None, "start from the weights of this run or model folder")
    ema: float = option(
        0.0, "decay of averages of the weights, validated in their place: 0.999; 0: off", below=1
    )
    precision: Literal["fp32", "bf16"] = option(
        "fp32", "bf16: numbers are multiplied in it, weights stay fp32"
    )
    cuda_graphs: bool = option(True, "on a GPU: record updates, and replay them")
    compile: bool = option(False, "torch.compile the model, without cuda_graphs")
    recompute: bool = option(False, "keep no activations of layers: less memory, more time")
    seed: int = option(1, "of weights, batches, masks and dropout", at_most=2**63 - 1)
    log_every: int = option(50, "updates between lines of metrics.jsonl", at_least=1)
    save_every: int = option(1_000, "updates between checkpoints to resume from", at_least=1)


COMMON: dict[str, Any] = {
    "run": (str, required("folder for everything that this run writes")),
    "data": DataSettings,
    "model": ModelSettings,
    "optim": OptimSettings,
    "validation": ValidationSettings,
    "train": TrainSettings,
}


@dataclass(frozen=True)
class Settings:
    run: str
    data: DataSettings
    model: ModelSettings
    optim: OptimSettings
    validation: ValidationSettings
    train: TrainSettings
    options: Any  # of the system
    decoding: Any  # of the system

    def updates(self, an_epoch: int) -> float:
        """Updates of the training; infinity if neither train.epochs nor train.steps is set."""
        limits = [self.train.steps, self.train.epochs * an_epoch]
        return min((limit for limit in limits if limit), default=math.inf)


def load_settings(
    path: Path, overrides: Sequence[str] = (), *, trusted: Collection[str] | None = None
) -> Settings:
    """A YAML file, changed by ``section.key=value`` overrides; see :func:`build_settings`."""
    return build_settings(read(path, overrides), str(path), trusted=trusted)


def build_settings(
    content: Mapping[str, Any],
    where: str = "configuration",
    *,
    trusted: Collection[str] | None = None,
) -> Settings:
    """Checked strictly: one error lists all wrong names and values, else all contradictions.

    Args:
        content: sections, as YAML has them.
        where: the name of their file, for the error.
        trusted: modules that the content may name as its system; None: any.
    """
    model = content.get("model")
    name = model.get("system", "cmlm") if isinstance(model, Mapping) else "cmlm"
    system = systems.find(str(name), trusted)
    own = systems.section(str(name))
    if own in (*COMMON, "decoding"):
        raise UserError(
            f"{where}: the options of {name} would be a section called {own}, which has another "
            "meaning; rename the module"
        )
    sections = {**COMMON, own: system.Options, "decoding": system.Decoding}
    found = dict(vars(build(class_of(sections), content, where)))
    settings = Settings(options=found.pop(own), **found)
    if problems := _contradictions(settings):
        raise UserError(f"{where}:{listed(problems)}")
    return settings


def settings_mapping(settings: Settings) -> dict[str, Any]:
    """The inverse of :func:`build_settings`."""
    found: dict[str, Any] = to_mapping(settings)
    own = systems.section(settings.model.system)
    return {own if name == "options" else name: value for name, value in found.items()}


def documented_settings(system: str = "cmlm") -> str:
    """All settings of a system with their defaults and help, as YAML that can be edited."""
    found = systems.find(system)
    own = {systems.section(system): found.Options, "decoding": found.Decoding}
    text = documented(class_of({**COMMON, **own}))
    return text.replace("system: cmlm", f"system: {system}", 1)


def architecture(settings: ModelSettings, vocab_size: int) -> dict[str, Any]:
    """Arguments of the Transformer that a system is built on."""
    return {
        "vocab_size": vocab_size,
        **SIZES[settings.size],
        "max_length": settings.max_length,
        "dropout": settings.dropout,
        "norm": settings.norm,
        "positions": settings.positions,
    }


def _contradictions(settings: Settings) -> list[str]:
    """Values that do not go together."""
    limits, problems = settings.train, []
    if not (limits.steps or limits.epochs):
        if getattr(settings.options, "needs_end", False):
            own = systems.section(settings.model.system)
            problems.append(f"{own} changes over the run: it needs train.epochs or train.steps")
        if settings.optim.decay == "linear":
            problems.append("optim.decay linear needs train.epochs or train.steps")
    if not (limits.steps or limits.epochs or limits.minutes):
        problems.append("nothing stops this run: set train.steps, epochs or minutes")
    most = getattr(settings.options, "references", 1)
    if (number := 1 + len(settings.data.references)) > most:
        problems.append(
            f"data.references: with data.folder that is {number} targets of a source, of which "
            f"{settings.model.system} takes {most}"
        )
    if settings.data.packed and limits.compile:
        problems.append("data.packed and train.compile exclude each other")
    if problem := _build_problem(settings.model, settings.options):
        problems.append(f"model: {problem}")
    return problems


@cache
def _build_problem(model: ModelSettings, options: Any) -> str:
    """Why a model cannot be built, or nothing. Many settings differ in their seed alone."""
    try:
        with torch.device("meta"):  # neither memory nor random numbers
            systems.find(model.system).Model(architecture(model, 8), options)
    except ValueError as error:
        return str(error)
    return ""
