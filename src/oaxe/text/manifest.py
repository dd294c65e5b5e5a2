"""The layout of a prepared folder, and its manifest: counts, reasons of drops, checksums.

manifest.json
subwords.model
{train,valid,test}.{source,target}.tokens.npy    flat token ids without special symbols
{train,valid,test}.{source,target}.offsets.npy   sentence i is tokens[offsets[i]:offsets[i + 1]]
{valid,test}.{source,target}.txt                 the kept lines as they were given, for BLEU

The manifest is written last: a folder without it is not finished.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oaxe.support import strict_json
from oaxe.support.checksums import Checksum, problem
from oaxe.support.errors import UserError

FORMAT = 1
MANIFEST, SUBWORDS = "manifest.json", "subwords.model"
SPLITS, SIDES = ("train", "valid", "test"), ("source", "target")


@dataclass(frozen=True)
class Dropped:
    """Pairs left out for one reason; the first few by their line, the same in both files."""

    count: int
    lines: list[int]


@dataclass(frozen=True)
class Split:
    files: list[str]  # source and target as they were given
    pairs: int
    tokens: list[int]  # source, target
    unknown: list[int]  # how many of these tokens are UNK
    dropped: dict[str, Dropped]


@dataclass(frozen=True)
class Manifest:
    format: int
    source_language: str
    target_language: str
    vocab_size: int
    options: dict[str, Any]
    inputs: dict[str, Checksum]  # of the files that were read
    splits: dict[str, Split]
    files: dict[str, Checksum]  # of the files in the folder

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language


def split_files(split: str) -> list[str]:
    """Names of the files of a split, tokens and offsets before text."""
    kinds = ["tokens.npy", "offsets.npy"] + ["txt"] * (split != "train")
    return [f"{split}.{side}.{kind}" for kind in kinds for side in SIDES]


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError if the folder is missing, unfinished, damaged or of another format."""
    path = folder / MANIFEST
    again = "make it with 'oaxe prepare', which may have been cut short"
    try:
        found = strict_json.read(path)
        if written_by_prepare(found) and found["format"] == FORMAT:
            return _parse(found)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "is not finished: it has no" if folder.is_dir() else "is no folder with a"
        raise UserError(f"{folder} {what} {MANIFEST}; {again}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}; {again}, with --overwrite") from error
    if not written_by_prepare(found):
        raise UserError(
            f"{path} was not written by 'oaxe prepare' but by something else; choose another folder"
        )
    raise UserError(f"{path} has format {found['format']}, this version reads {FORMAT}; {again}")


def _parse(found: dict[str, Any]) -> Manifest:
    sums = {
        key: {name: Checksum(**value) for name, value in found[key].items()}
        for key in ("inputs", "files")
    }
    splits = {
        name: Split(**split | {"dropped": {k: Dropped(**v) for k, v in split["dropped"].items()}})
        for name, split in found["splits"].items()
    }
    return Manifest(**found | sums | {"splits": splits})


def written_by_prepare(found: object) -> bool:
    """Whether the content of a manifest.json is ours, of this version or another."""
    return isinstance(found, dict) and isinstance(found.get("format"), int)


def verify_files(
    folder: Path, manifest: Manifest, names: Iterable[str], *, content: bool = True
) -> None:
    """Compare files with their checksums; ``content=False`` looks at the sizes alone.

    Raises:
        UserError: a file is missing or differs.
    """
    for name in names:
        path, expected = folder / name, manifest.files.get(name)
        wrong = problem(path, expected, content=content) if expected else f"{path} is missing"
        if wrong:
            raise UserError(f"{wrong}; run 'oaxe prepare' again, with --overwrite")
