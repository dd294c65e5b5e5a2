"""What a prepared folder holds: counts, what was dropped and why, checksums of every file.

The manifest is written last and in one step: a folder without it is not finished.

    manifest.json
    subwords.model
    {train,valid,test}.{source,target}.tokens.npy    flat token ids without special symbols
    {train,valid,test}.{source,target}.offsets.npy   sentence i is tokens[offsets[i]:offsets[i + 1]]
    {valid,test}.{source,target}.txt                 the kept lines as they were given, for BLEU
"""

import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oaxe.support.errors import UserError

FORMAT = 1
MANIFEST, SUBWORDS = "manifest.json", "subwords.model"
SPLITS, SIDES = ("train", "valid", "test"), ("source", "target")


@dataclass(frozen=True)
class Checksum:
    bytes: int
    crc32: str

    def __str__(self) -> str:
        return f"{self.bytes:,} bytes with crc32 {self.crc32}"


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


def checksum(path: Path) -> Checksum:
    crc = size = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
            size += len(block)
    return Checksum(size, f"{crc:08x}")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Complete or not at all, also when the machine stops."""
    temporary = folder / (MANIFEST + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError if the folder is missing, unfinished, damaged or of another format."""
    path = folder / MANIFEST
    again = "make it with 'oaxe prepare', whose run may have been cut short"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "is not finished: it has no" if folder.is_dir() else "is no folder with a"
        raise UserError(f"{folder} {what} {MANIFEST}; {again}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}; {again}, with --overwrite") from error
    if not written_by_prepare(found):
        raise UserError(
            f"{path} was not written by 'oaxe prepare' but by something else; choose another folder"
        )
    version = found["format"]
    if version != FORMAT:
        raise UserError(f"{path} has format {version}, this version reads {FORMAT}; {again}")
    try:
        splits = {
            name: Split(
                **split | {"dropped": {k: Dropped(**v) for k, v in split["dropped"].items()}}
            )
            for name, split in found["splits"].items()
        }
        sums = {
            key: {name: Checksum(**value) for name, value in found[key].items()}
            for key in ("inputs", "files")
        }
        return Manifest(**found | sums | {"splits": splits})
    except (TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}; {again}, with --overwrite") from error


def written_by_prepare(found: object) -> bool:
    """Whether the content of a manifest.json is ours, of this version or another."""
    return isinstance(found, dict) and isinstance(found.get("format"), int)


def verify(folder: Path, manifest: Manifest, names: Iterable[str], *, content: bool = True) -> None:
    """Compare files with their checksums; ``content=False`` looks at the sizes alone.

    Raises:
        UserError: a file is missing or differs.
    """
    for name in names:
        path = folder / name
        if name not in manifest.files or not path.is_file():
            raise UserError(f"{path} is missing; run 'oaxe prepare' again, with --overwrite")
        expected = manifest.files[name]
        size = path.stat().st_size
        found = checksum(path) if content else Checksum(size, expected.crc32)
        if found != expected:
            raise UserError(
                f"{path} is damaged: {found}, the manifest says {expected}; "
                "run 'oaxe prepare' again, with --overwrite"
            )
