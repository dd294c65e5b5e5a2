"""Text files go in, plain or compressed; lines and pairs of lines come out.

A line ends at a line feed, or at a carriage return and a line feed; any other "line break" of
Unicode is a character of the sentence. A byte order mark in front is not part of the text.
Nothing is mended or skipped: a line that cannot be read is an error with its file and number.
"""

import gzip
import io
import lzma
import os
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from select import select
from typing import Any, BinaryIO

from oaxe.support.errors import UserError
from oaxe.support.files import write_whole

LINE_LIMIT = 1 << 20  # bytes; more is no sentence, and would let memory grow with the file
BLOCK = 1 << 16  # bytes that are read at once
CHUNK_PAIRS = 8192
CHUNK_BYTES = 1 << 24  # a chunk ends here too, so that long lines need no more memory
Pair = tuple[Path, Path]  # files of source and target, one sentence a line
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAGIC = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ", ".bz2": b"BZh", ".zst": b"\x28\xb5\x2f\xfd"}
OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
}


@dataclass(frozen=True)
class Chunk:
    """Some consecutive pairs of two parallel files."""

    first_line: int  # counted from 1
    sources: list[str]
    targets: list[str]
    position: int  # bytes read so far from both files as they are on disk, for a progress bar


class Lines:
    """The lines of a file (plain, ``.gz`` or ``.xz``) one by one, with the number of the last.

    Args:
        path: of the file; with ``file``, its name in messages.
        file: an open file to read instead; it is not closed.
    """

    def __init__(self, path: Path, file: BinaryIO | None = None) -> None:
        self.path = path
        self.number = 0
        self.blanks = 0  # number of blank lines at the end so far
        self._is_own = file is None
        try:
            self._disk = path.open("rb") if file is None else file
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; check the path") from error
        opened = OPENERS.get(path.suffix) if file is None else None
        self._text: Any = opened(self._disk) if opened else self._disk
        self._whole = deque[bytes]()  # complete lines that were read ahead
        self._rest = b""  # the beginning of the next
        self._ended = False
        self._has_returns = False  # inside its first line

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            self._text.close()
            self._disk.close()

    @property
    def position(self) -> int:
        """Bytes of the file on disk that have been read."""
        return self._disk.tell()

    def read(self) -> str | None:
        """The next line without its end, or None after the last one."""
        while not self._whole and not self._ended:
            self._fetch()
        if not self._whole:
            self._refuse_returns()
            return None
        self.number += 1
        line = self._whole.popleft().removesuffix(b"\r")
        if self.number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
            self._has_returns = b"\r" in line
        if len(line) > LINE_LIMIT:
            self._refuse_returns()
            raise self._error(
                f"is longer than {LINE_LIMIT:,} bytes; the file needs one sentence a line"
            )
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self._refuse_compressed(line)
            raise self._error(
                f"is not UTF-8: byte {line[error.start]:#04x} at position {error.start}; "
                "convert the file (iconv -f ITS-ENCODING -t UTF-8), or correct the line"
            ) from error
        self.blanks = 0 if text.strip() else self.blanks + 1
        return text

    def comes_within(self, seconds: float) -> bool:
        """Whether the next line, or the end, arrives within that time."""
        while not self._whole and not self._ended:
            try:
                if not select([self._disk], [], [], seconds)[0]:
                    return False
            except io.UnsupportedOperation:  # not a file of the system: reading does not wait
                pass
            except OSError:  # Windows, where only sockets can be asked
                if not stat.S_ISREG(os.fstat(self._disk.fileno()).st_mode):
                    return False
            self._fetch()
        return True

    def count_rest(self) -> int:
        """The number of lines of the whole file; reads to its end.

        Raises:
            UserError: all lines were read as one, because they end as on old Macs.
        """
        while self.read() is not None:
            pass
        return self.number

    def _refuse_returns(self) -> None:
        if self.number == 1 and self._has_returns:
            raise UserError(
                f"{self.path} has only one line, with carriage returns inside: its lines end as on "
                "old Macs; convert it (tr '\\r' '\\n')"
            )

    def _refuse_compressed(self, line: bytes) -> None:
        for ending, start in MAGIC.items():
            if self.number == 1 and line.startswith(start):
                raise UserError(
                    f"{self.path} is compressed, but its name does not end in {ending}: rename it "
                    f"to {self.path.name}{ending}, or decompress it"
                )

    def _fetch(self) -> None:
        """Read the next bytes, which may wait."""
        try:
            block = self._text.read1(BLOCK)
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            raise UserError(
                f"{self.path} cannot be read after line {self.number}: {error}; "
                "the file is damaged or not what its ending says: fetch or compress it again"
            ) from error
        self._ended = not block
        *whole, self._rest = (self._rest + block).split(b"\n")
        if (self._ended and self._rest) or len(self._rest) > LINE_LIMIT + 1:
            whole, self._rest = [*whole, self._rest], b""
        self._whole.extend(whole)

    def _error(self, what: str) -> UserError:
        return UserError(f"{self.path}, line {self.number} {what}")


def read_in_chunks(path: Path, count: int) -> Iterator[list[str]]:
    """The lines of a file in chunks of ``count``; the last may be shorter.

    Raises:
        UserError: the file is missing, damaged, empty or not UTF-8.
    """
    with Lines(path) as lines:
        while chunk := list(islice(iter(lines.read, None), count)):
            yield chunk
        if lines.count_rest() == 0:
            raise UserError(f"{path} is empty; give a file with one sentence a line")


def read_lines(path: Path) -> list[str]:
    """All lines of a file that is small enough; see :func:`read_in_chunks`."""
    return [line for chunk in read_in_chunks(path, 10_000) for line in chunk]


def read_parallel(source: Path, target: Path) -> Iterator[Chunk]:
    """Pairs of lines in chunks of bounded size.

    Raises:
        UserError: a file is missing, damaged, empty or not UTF-8, or the files are not parallel.
    """
    with Lines(source) as left, Lines(target) as right:
        first, sources, targets, size = 1, list[str](), list[str](), 0
        while True:
            a, b = left.read(), right.read()
            if a is None or b is None:
                break
            sources.append(a)
            targets.append(b)
            size += len(a) + len(b)
            if len(sources) == CHUNK_PAIRS or size >= CHUNK_BYTES:
                yield Chunk(first, sources, targets, left.position + right.position)
                first, sources, targets, size = first + len(sources), [], [], 0
        n, m = left.count_rest(), right.count_rest()
        if n != m:
            rest_is_blank = (left if n > m else right).blanks >= abs(n - m)
            advice = "parallel files need as many: line n of one translates line n of the other"
            raise unequal(source, n, target, m, rest_is_blank, advice)
        if n == 0:
            raise UserError(f"{source} and {target} are empty; give files with one sentence a line")
        if sources:
            yield Chunk(first, sources, targets, left.position + right.position)


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The same, pair by pair."""
    for chunk in read_parallel(source, target):
        yield from zip(chunk.sources, chunk.targets, strict=True)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A small file: a kill leaves the old one or the new one."""
    write_whole(path, "".join(f"{line}\n" for line in lines))


def unequal(a: Path, n: int, b: Path, m: int, rest_is_blank: bool, advice: str) -> UserError:
    """The error for files of n and m lines; advice of its own if the longer ends in blank ones."""
    more, longer = abs(n - m), a if n > m else b
    if rest_is_blank and more == 1:
        advice = f"the last line of {longer} is blank: remove it"
    elif rest_is_blank:
        advice = f"the last {more:,} lines of {longer} are blank: remove them"
    return UserError(f"{a} has {n:,} lines, {b} has {m:,}; {advice}")
