"""Training that begins with the weights of another model."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from oaxe.decoding.saved import differences, load_folder
from oaxe.model.transformer import SIZES
from oaxe.support.config import to_mapping
from oaxe.support.errors import UserError
from oaxe.systems import System, build, section
from oaxe.text.corpus import load_subwords
from oaxe.text.languages import check_direction
from oaxe.training.settings import Settings


def start_from(
    settings: Settings, system: System, languages: tuple[str, str], systems: Collection[str] = ()
) -> None:
    """Load the weights of ``train.init_from``, of a model of the same languages and subwords."""
    path, data = Path(str(settings.train.init_from)), Path(settings.data.folder)
    if not path.is_dir():
        raise UserError(f"train.init_from {path} is no folder; give one of a run or of a model")
    found, their_subwords, config = load_folder(path, [settings.model.system, *systems])
    source = languages[0] if system.translates else ""  # a language model has none
    check_direction(f"train.init_from {path}", config["languages"], data, (source, languages[1]))
    if their_subwords.read_bytes() != load_subwords(data).model:
        raise UserError(
            f"train.init_from {path} was trained with other subwords than {data}; prepare the data "
            f"with --subwords {their_subwords}"
        )
    weights = system.weights_from(found)
    if shapes := differences(system.state_dict(), weights):
        problems = _other_settings(system, found) or shapes[:3]
        raise UserError(
            f"train.init_from {path} is of another architecture:\n  " + "\n  ".join(problems) + "\n"
            "Give a model of the same architecture, or change the settings of this run"
        )
    system.load_state_dict(weights)


def _other_settings(own: System, found: System) -> list[str]:
    """Settings that differ, by their names in a configuration."""
    theirs, ours = (
        {"model.system": system.name}
        | {f"model.{name}": value for name, value in _named_size(system.architecture).items()}
        | {f"{section(system.name)}.{n}": value for n, value in to_mapping(system.options).items()}
        for system in (found, own)
    )
    with torch.device("meta"):
        alike = build(found.name, own.architecture, found.options)
    if not differences(own.state_dict(), own.weights_from(alike)):
        del ours["model.system"]  # it may start from one of that system, but for its size
    return [
        f"{name}: {theirs[name]} there, {value} here"
        for name, value in ours.items()
        if name in theirs and theirs[name] != value
    ]


def _named_size(architecture: dict[str, Any]) -> dict[str, Any]:
    """With the name of the size in place of its numbers, if it has one."""
    for name, size in SIZES.items():
        if size.items() <= architecture.items():
            return {"size": name} | {k: v for k, v in architecture.items() if k not in size}
    return architecture
