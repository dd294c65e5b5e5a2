"""Checkpoints that survive a kill at any moment, a full disk and a flipped bit.

A checkpoint is a folder ``step-00001000`` of safetensors and JSON files and a manifest with the
size and CRC32 of each. It is written under a temporary name, synced, and renamed: a folder with
that name is complete or it does not exist. Nothing is ever unpickled.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from oaxe.support import strict_json
from oaxe.support.checksums import Checksum, checksum_of
from oaxe.support.errors import UserError
from oaxe.support.files import sync, write_synced

FORMAT = 2
MANIFEST = "manifest.json"


@dataclass
class Position:
    """Where a run stands: all that its checkpoints hold besides tensors."""

    step: int = 0
    epoch: int = 0  # of the next update
    update: int = 0  # of the next update, in that epoch
    seconds: float = 0.0  # spent on updates; not on validating and saving
    best: list[dict[str, float]] = field(default_factory=list)  # {"step", "score"}, best first
    validations_without_gain: int = 0
    validation_due: bool = False  # interrupted before the validation that belongs to this step
    logged_seconds: float = 0.0  # at the last record of training
    tokens: int = 0  # of the target, since that record
    # Sum and number of each statistic since that record, over all ranks.
    statistics: dict[str, tuple[float, float]] = field(default_factory=dict)


class DamagedError(Exception):
    """A checkpoint that is not what was written; the message says how."""


def save_checkpoint(
    folder: Path, step: int, tensors: dict[str, dict[str, Tensor]], state: dict[str, Any]
) -> Path:
    """Write ``folder/step-<step>`` with one safetensors file for each entry of ``tensors``."""
    final = folder / f"step-{step:08d}"
    temporary, outdated = folder / f".{final.name}.tmp", folder / f".{final.name}.old.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        files = {f"{name}.safetensors": save(_plain(group)) for name, group in tensors.items()}
        files["state.json"] = json.dumps(state, indent=1).encode()
        sums = {name: asdict(checksum_of([data])) for name, data in files.items()}
        manifest = {"format": FORMAT, "step": step, "files": sums}
        files[MANIFEST] = json.dumps(manifest, indent=1).encode()
        for name, data in files.items():
            write_synced(temporary / name, data)
        sync(temporary)
        if final.exists():  # a folder cannot replace another in one step
            shutil.rmtree(outdated, ignore_errors=True)
            final.rename(outdated)
        temporary.rename(final)
        sync(folder)
        shutil.rmtree(outdated, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        good = [path.name for path in checkpoints(folder)]
        kept = f"{good[-1]} is intact" if good else "there is no earlier one"
        raise UserError(
            f"could not write checkpoint {final}: {error.strerror}; {kept}. "
            "Make room and run the same command again"
        ) from error
    return final


def load_checkpoint(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors and state of a checkpoint; DamagedError if a file is not as the manifest says."""
    try:
        manifest = strict_json.read(path / MANIFEST)
        if manifest["format"] != FORMAT:
            raise DamagedError(f"format {manifest['format']}, this version reads {FORMAT}")
        files = {}
        for name, expected in manifest["files"].items():
            files[name] = (path / name).read_bytes()
            found, written = checksum_of([files[name]]), Checksum(**expected)
            if found != written:
                raise DamagedError(f"{name} has {found} instead of {written}")
        state = strict_json.parse(files.pop("state.json"))
        # From the bytes that were verified: tensors that map the file would change with it.
        return {name.removesuffix(".safetensors"): load(files[name]) for name in files}, state
    except FileNotFoundError as error:
        raise DamagedError(f"{Path(error.filename).name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from None


def load_newest(
    folder: Path, warn: Callable[[str], None]
) -> tuple[Path, dict[str, dict[str, Tensor]], dict[str, Any]] | None:
    """The newest checkpoint that is whole; warns of newer ones that are not.

    None if there are no checkpoints; if there are and none is whole, that is an error: to start
    anew, after what may have been weeks, is for the user to decide.
    """
    damaged = []
    for path in reversed(checkpoints(folder)):
        try:
            return path, *load_checkpoint(path)
        except DamagedError as error:
            damaged.append(f"checkpoint {path} is damaged: {error}")
            warn(f"{damaged[-1]}; trying the one before it")
    if damaged:
        raise UserError(
            "\n".join(damaged) + f"\nThere is no other. Remove {folder} to start from the beginning"
        )
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first. Temporary folders do not count."""
    return sorted(folder.glob("step-????????"))


def remove_others(folder: Path, keep: set[int]) -> None:
    """Remove checkpoints of steps that are not to be kept, and what a kill left half written."""
    for path in [*checkpoints(folder), *folder.glob(".step-*.tmp")]:
        if path.name.startswith(".") or step_of(path) not in keep:
            shutil.rmtree(path, ignore_errors=True)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's state as named tensors; its options come from the configuration."""
    state: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, entry in state.items() for name, value in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def average_tensors(groups: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, summed in float64."""
    if not groups:
        raise ValueError("nothing to average")
    return {
        name: (torch.stack([g[name].double() for g in groups]).mean(0)).to(groups[0][name].dtype)
        for name in groups[0]
    }


def _plain(group: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in group.items()}
