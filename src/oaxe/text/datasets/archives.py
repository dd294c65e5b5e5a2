"""Tar and zip archives go in, one parallel text comes out.

Nothing is unpacked: members are read by name and written where we choose, so that no path in an
archive can reach another folder.
"""

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO

from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole

BLOCK = 1 << 20


def join_archives(archives: list[tuple[Path, tuple[str, str]]], outputs: tuple[Path, Path]) -> None:
    """Write one parallel text from several archives, each a path and the names of two members.

    A damaged archive is renamed, so that it can be downloaded again.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(appears_whole(path)) for path in outputs]
        for path, members in archives:
            lines = dict.fromkeys(members, 0)
            try:
                for name, content in read_members(path, set(members)):
                    lines[name] += copy_lines(content, files[members.index(name)])
            except (
                tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error,
                lzma.LZMAError, EOFError,
            ) as error:  # fmt: skip
                refused = path.replace(path.with_name(f"{path.name}.refused"))
                raise UserError(
                    f"{path} is damaged: {error}. It is kept as {refused.name}; the same command "
                    "downloads it again"
                ) from error
            counts = ", ".join(f"{name} {count:,} lines" for name, count in lines.items())
            if 0 in lines.values() or len({*lines.values()}) > 1:
                raise UserError(f"{path} does not hold parallel text: {counts}")


def read_members(path: Path, names: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Members with one of these names, in any folder, in the order of the archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if (name := PurePosixPath(entry.filename).name) in names:
                    with archive.open(entry) as content:
                        yield name, content
        return
    with tarfile.open(path) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name in names and (text := tar.extractfile(member)) is not None:
                with text:
                    yield name, text


def copy_lines(content: IO[bytes], file: IO[bytes]) -> int:
    """Returns the number of lines; a missing end of the last one is added."""
    count, last = 0, b"\n"
    while block := content.read(BLOCK):
        file.write(block)
        count += block.count(b"\n")
        last = block[-1:]
    if last != b"\n":
        file.write(b"\n")
        count += 1
    return count
