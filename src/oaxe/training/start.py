"""Training that begins with the weights of another model, as far as they fit."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oaxe.decoding.saved import load_folder
from oaxe.model.transformer import SIZES
from oaxe.support.config import changed
from oaxe.support.errors import UserError, listed
from oaxe.systems import System, section
from oaxe.text.corpus import load_subwords
from oaxe.text.languages import check_direction
from oaxe.training.settings import Settings

TABLES = ("_positions.weight", "_from_end.weight")  # one row a position: they may be longer
USE = ("norm", "heads")  # settings that change what the same weights compute
LEAST = 0.01  # share of the weights that must fit
SHOWN = 6  # groups of weights that are new


@dataclass(frozen=True)
class Start:
    """How much a model has taken over from another."""

    tensors: int
    all_tensors: int
    share: float  # of the weights
    new: list[str]  # whole tensors, and rows of tables; see groups
    other_settings: list[str]
    is_doubtful: bool  # perhaps not intended

    def __str__(self) -> str:
        what = f"all {self.all_tensors} tensors"
        if self.new:
            percent = math.floor(1000 * self.share) / 10  # 100.0 is all of them
            more = f" and {len(self.new) - SHOWN} more" if len(self.new) > SHOWN else ""
            what = (
                f"{self.tensors} of {self.all_tensors} tensors, {percent} % of the weights; new: "
                + ", ".join(self.new[:SHOWN])
                + more
            )
        return "; ".join([what, *self.other_settings])


def start_from(
    settings: Settings, system: System, languages: tuple[str, str], systems: Collection[str] = ()
) -> Start:
    """Take over the weights of ``train.init_from``, of a model of these languages and subwords."""
    path = Path(str(settings.train.init_from))
    if not path.is_dir():
        raise UserError(
            f"train.init_from {path} is no folder; train that run first, give the folder of "
            "another run or of a model, or start from random weights: --set train.init_from=null"
        )
    source = languages[0] if system.translates else ""  # a language model has none
    found = _load("train.init_from", path, settings, (source, languages[1]), systems)
    start = take_over(system, found)
    if start.share < LEAST:
        raise UserError(
            f"train.init_from {path} has no weights that fit this model:"
            f"{listed(start.other_settings or start.new[:SHOWN])}\n"
            "Give a model of the same size, change the settings of this run, or start from random "
            "weights: --set train.init_from=null"
        )
    return start


def teacher_of(
    settings: Settings, languages: tuple[str, str], systems: Collection[str] = ()
) -> System:
    """The model that the option ``teacher`` of the system names."""
    name, path = f"{section(settings.model.system)}.teacher", settings.options.teacher
    if path is None or not Path(path).is_dir():
        what = "is not set" if path is None else f"{path} is no folder"
        raise UserError(
            f"{name} {what}; train an autoregressive model first, and give the folder of its run"
        )
    return _load(name, Path(path), settings, languages, systems)


def _load(
    setting: str,
    path: Path,
    settings: Settings,
    languages: tuple[str, str],
    systems: Collection[str],
) -> System:
    """A model of the same languages and subwords; ``setting`` is what names its path."""
    data = Path(settings.data.folder)
    found, their_subwords, config = load_folder(path, [settings.model.system, *systems])
    if not isinstance(found, System):
        raise UserError(
            f"{setting} {path} was exported for a CPU; give the model that it was made from"
        )
    check_direction(f"{setting} {path}", config["languages"], data, languages)
    if their_subwords.read_bytes() != load_subwords(data).model:
        raise UserError(
            f"{setting} {path} was trained with other subwords than {data}; prepare the data "
            f"with --subwords {their_subwords}"
        )
    return found


def take_over(system: System, other: System) -> Start:
    """Layers of the same names and shapes, and of tables of positions the rows that both have."""
    own, theirs = system.state_dict(), system.weights_from(other)
    fitting: dict[str, Tensor] = {}
    for name, mine in own.items():
        given = theirs.get(name)
        if given is None:
            continue
        if given.shape == mine.shape:
            fitting[name] = given
        elif name.endswith(TABLES) and given.shape[1:] == mine.shape[1:]:
            fitting[name] = given[: len(mine)]
    # A bias is of no use without the matrix that belongs to it.
    apart = {layer_of(name) for name in own.keys() - fitting.keys()}
    taken = {name: found for name, found in fitting.items() if layer_of(name) not in apart}
    rows = {name: len(found) for name, found in taken.items() if found.shape != own[name].shape}
    filled = {name: torch.cat([taken[name], own[name][n:]]) for name, n in rows.items()}
    system.load_state_dict({**own, **taken, **filled})
    missing = [name for name in own if name not in taken]
    kept = [n for n in missing if n.partition(".")[0] not in system.training_parts]  # when finished
    n_taken, n_own = (sum(t.numel() for t in found.values()) for found in (taken, own))
    return Start(
        tensors=len(taken),
        all_tensors=len(own),
        share=n_taken / n_own,
        new=groups(missing, own) + [f"{name}[{n}:]" for name, n in rows.items()],
        other_settings=_other_settings(system, other),
        is_doubtful=(
            n_taken < n_own / 2
            or (system.name == other.name and len(kept) > 0)
            or any(system.architecture.get(k) != other.architecture.get(k) for k in USE)
        ),
    )


def layer_of(name: str) -> str:
    return name.rpartition(".")[0]


def groups(names: Collection[str], among: Collection[str]) -> list[str]:
    """The names, with ``*`` for the end of those that share a beginning which no others have.

    Example:
        >>> groups(["a.b.c", "a.b.d", "a.e"], among=["a.b.c", "a.b.d", "a.e", "a.f"])
        ['a.b.*', 'a.e']
    """
    others = [name for name in among if name not in names]

    def group(name: str) -> str:
        parts = name.split(".")
        for n in range(1, len(parts)):
            beginning = ".".join(parts[:n]) + "."
            if not any(other.startswith(beginning) for other in others):
                return beginning + "*"
        return name

    return list(dict.fromkeys(map(group, names)))


def _other_settings(own: System, other: System) -> list[str]:
    """Settings that differ and decide what fits, by their names in a configuration."""
    theirs, ours = (_named_size(system.architecture) for system in (other, own))
    if ("size" in theirs) != ("size" in ours):
        theirs, ours = other.architecture, own.architecture
    return changed(
        {"model": {**theirs, "system": other.name, "dropout": None}},
        {"model": {**ours, "system": own.name, "dropout": None}},
    )


def _named_size(architecture: dict[str, Any]) -> dict[str, Any]:
    """The architecture with the name of its size in place of the numbers, if it has one."""
    for name, size in SIZES.items():
        if size.items() <= architecture.items():
            return {"size": name} | {k: v for k, v in architecture.items() if k not in size}
    return architecture
