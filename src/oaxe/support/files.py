"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from oaxe.support.errors import UserError


@contextmanager
def appears_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that has its name only when all of it is on the disk.

    Of a link, what it points to is replaced. A device or a pipe is written to as it is.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Before the work, not after it: raises UserError if this cannot be written, or is read."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; give a file")
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}; create it first")
    there = [given for given in inputs if given is not None and given.exists()]
    if path.is_file() and any(path.samefile(given) for given in there):
        raise UserError(f"{path} is read, and would be overwritten; give the output another name")


def write_whole(path: Path, text: str) -> None:
    """Write a small file: a kill leaves the old content or the new one, never a part."""
    with appears_whole(path) as file:
        file.write(text.encode())
