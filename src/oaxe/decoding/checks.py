"""Checks of a saved model, whose files may come from a stranger or be damaged.

Every file that is read has a checksum, names stay in the folder, numbers are those of a model that
could be trained, and weights are finite. Each check raises UserError.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oaxe.support.checksums import sha256
from oaxe.support.errors import UserError, listed

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = {
    "vocab_size": 10_000_000,
    "dim": 65_536,
    "ffn": 1_000_000,
    "heads": 4_096,
    "encoder_layers": 512,
    "decoder_layers": 512,
    "max_length": 1_000_000,
}
LARGEST_OTHER = 1_000_000  # dropout, for example


def check_config(config: Mapping[str, Any], path: Path) -> None:
    """All wrong types and numbers at once."""
    wrong = [
        f'"{name}" must be an object of names and values, got {_short(config[name])}'
        for name in ("architecture", "decoding", "options")
        if not isinstance(config[name], dict)
    ]
    if not isinstance(config["system"], str):
        wrong.append(f'"system" must be a name, got {_short(config["system"])}')
    languages = config["languages"]
    if not isinstance(languages, list) or [type(name) for name in languages] != [str, str]:
        wrong.append(f'"languages" must be two names, source and target, got {_short(languages)}')
    if isinstance(config["architecture"], dict):
        wrong += _impossible(config["architecture"])
    if wrong:
        raise UserError(f"{path} describes no model; copy it again. What is wrong:{listed(wrong)}")
    if missing := [name for name in LARGEST if name not in config["architecture"]]:
        raise UserError(
            f'"architecture" in {path} is none: it lacks {", ".join(missing)}; '
            "copy the file that was written"
        )


def _impossible(architecture: Mapping[str, Any]) -> list[str]:
    wrong = []
    for name, value in architecture.items():
        most = LARGEST.get(name, LARGEST_OTHER)
        is_number = isinstance(value, int | float)
        if (is_number and not 0 <= value <= most) or (name in LARGEST and type(value) is not int):
            wrong.append(
                f"architecture.{name} must be a number from 0 to {most:,}, got {_short(value)}"
            )
    return wrong


def verify_files(
    folder: Path, config: Mapping[str, Any], needed: Iterable[str], path: Path
) -> None:
    """Compare files with the SHA-256 in the config."""
    sums = config["sha256"]
    if not isinstance(sums, dict) or (missing := sorted({*needed} - sums.keys())):
        names = ", ".join(missing) if isinstance(sums, dict) else "every file"
        raise UserError(f'"sha256" in {path} lacks {names}; copy the file that was written')
    for name, expected in sums.items():
        if name in ("", ".", "..") or set(name) & {"/", "\\", "\0"}:
            raise UserError(
                f'"sha256" in {path} names {_short(name)}, which is no file of its folder; '
                "do not use this model"
            )
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: copy the whole folder again")
        if (found := sha256(folder / name)) != expected:
            raise UserError(
                f"{folder / name} is damaged: its sha256 is {found}, "
                f"{path.name} says {_short(expected)}. Copy the file again"
            )


def check_finite(weights: "Mapping[str, Tensor]", path: Path) -> None:
    bad = [name for name, weight in weights.items() if not weight.isfinite().all()]
    if bad:
        names = ", ".join(sorted(bad)[:3]) + (" and others" if len(bad) > 3 else "")
        raise UserError(
            f"{path} holds weights that are not finite, in {names}: its training failed; "
            "take an earlier checkpoint"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
