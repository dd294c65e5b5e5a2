"""Training that begins with the weights of another model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oaxe.decoding.saved import differences, load_folder
from oaxe.model.transformer import SIZES, Transformer
from oaxe.support.errors import UserError
from oaxe.text.corpus import load_subwords
from oaxe.text.languages import check_direction
from oaxe.training.settings import ModelSettings, Settings


def start_from(settings: Settings, model: Transformer, languages: tuple[str, str]) -> None:
    """Load the weights of ``train.init_from``, of a model that speaks the same languages."""
    path, data = Path(str(settings.train.init_from)), Path(settings.data.folder)
    if not path.is_dir():
        raise UserError(f"train.init_from {path} is no folder; give one of a run or of a model")
    found, their_subwords, config = load_folder(path)
    source = languages[0] if len(model.encoder) else ""  # a language model has none
    check_direction(f"train.init_from {path}", config["languages"], data, (source, languages[1]))
    if their_subwords.read_bytes() != load_subwords(data).model:
        raise UserError(
            f"train.init_from {path} was trained with other subwords than {data}; prepare the data "
            f"with --subwords {their_subwords}"
        )
    weights = found.state_dict()
    if found.causal and model.length is not None:
        weights = _all_at_once(weights, model.state_dict())
    if shapes := differences(model.state_dict(), weights):
        problems = _other_settings(settings.model, config["kind"], found.architecture) or shapes[:3]
        raise UserError(
            f"train.init_from {path} is of another architecture:\n  " + "\n  ".join(problems) + "\n"
            "Give a model of the same architecture, or change the settings of this run"
        )
    model.load_state_dict(weights)


def _other_settings(own: ModelSettings, kind: str, made: Mapping[str, Any]) -> list[str]:
    """Those that differ in a model of this architecture; its size only if that has a name."""
    no_encoder = {"encoder_layers": 0} if kind == "lm" else {}
    sizes = (name for name, size in SIZES.items() if {**size, **no_encoder}.items() <= made.items())
    theirs = {
        "kind": "nat" if (kind, own.kind) == ("at", "nat") else kind,  # which may begin with it
        "size": next(sizes, own.size),
        **{name: made[name] for name in ("norm", "positions", "max_length")},
        "upsample": made["upsample"] or own.upsample,
    }
    return [
        f"model.{name}: {value} there, {getattr(own, name)} here"
        for name, value in theirs.items()
        if value != getattr(own, name)
    ]


def _all_at_once(teacher: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of an autoregressive model for one that predicts the length, then all words."""
    places = teacher["source_positions.weight"]  # LENGTH comes in front of the source there
    moved = {"source_positions.weight": torch.cat([places[:1], places[:-1]])}
    return teacher | moved | {name: own[name] for name in own if name.startswith("length.")}
