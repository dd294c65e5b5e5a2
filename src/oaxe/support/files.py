"""Files that are complete or absent: a kill or a full disk never leaves a part under the name."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from oaxe.support.errors import UserError

WINDOWS = os.name == "nt"


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Puts the name of the file into an OSError that has none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and not isinstance(error, BrokenPipeError):
            error.filename = str(path)
        raise


@contextmanager
def appears_whole(path: Path, *, alone: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when all of it is on the disk.

    The target of a link is replaced, not the link. A device or a pipe is written to as it is.

    Args:
        path: until then it is called ``PATH.part``.
        alone: False where others may write the same file at the same time: it is called
            ``PATH.NUMBER.part``, and is removed after an error. The last one to end stays.
    """
    path = Path(os.path.realpath(path))
    if _is_special(path):
        with named(path), path.open("wb") as file:
            yield file
        return
    number = "" if alone else f".{secrets.token_hex(4)}"
    part = path.with_name(f"{path.name}{number}.part")
    try:
        with named(path), part.open("wb" if alone else "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == str(part):
            error.filename = str(path)  # what the user knows
        if not alone:
            part.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError) and path.parent.is_dir():  # such as /proc/1
                raise UserError(f"cannot write {path}: its folder takes no new files") from None
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a small file: a kill leaves the old content or the new one, never a part."""
    with appears_whole(path) as file:
        file.write(text.encode())


def write_together(texts: Mapping[Path, str]) -> None:
    """Write several files: a full disk leaves all of the old ones."""
    new = {Path(os.path.realpath(path)): text for path, text in texts.items()}
    parts = {path: path.with_name(f"{path.name}.part") for path in new if not _is_special(path)}
    try:
        for path, part in parts.items():
            write_synced(part, new[path].encode())
    except OSError:
        for part in parts.values():
            part.unlink(missing_ok=True)
        raise
    for path, part in parts.items():
        part.replace(path)
    for path in new.keys() - parts.keys():
        write_whole(path, new[path])


def _is_special(path: Path) -> bool:
    """Whether a path is a device or a pipe."""
    return path.exists() and not path.is_file()


def write_json(path: Path, value: Any) -> None:
    """The same, as indented JSON."""
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk, for a folder that is renamed when complete."""
    with named(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    if WINDOWS and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, unless it exists, before long work; UserError if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {folder}: {error.strerror}; choose another one"
        ) from None


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Raises UserError if the path cannot be written, or is one of the inputs; call it first."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; give a file")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}; create it first")
    existing = [given for given in inputs if given is not None and given.exists()]
    if path.is_file() and any(path.samefile(given) for given in existing):
        raise UserError(f"{path} is read, and would be overwritten; give the output another name")
