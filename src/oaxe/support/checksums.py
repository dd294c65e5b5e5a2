"""Checksums: CRC32 with the size against damage and mix-ups, SHA-256 for downloads."""

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

BLOCK = 1 << 20  # bytes that are read at once


@dataclass(frozen=True)
class Checksum:
    bytes: int
    crc32: str  # eight hexadecimal digits

    def __str__(self) -> str:
        return f"{self.bytes:,} bytes with crc32 {self.crc32}"


def checksum(path: Path) -> Checksum:
    """The checksum of a file."""
    with path.open("rb") as file:
        return checksum_of(iter(partial(file.read, BLOCK), b""))


def checksum_of(pieces: Iterable[bytes]) -> Checksum:
    """The checksum of bytes in memory, one piece after the other.

    Example:
        >>> checksum_of([b"12345", b"6789"])
        Checksum(bytes=9, crc32='cbf43926')
    """
    size = crc = 0
    for piece in pieces:
        size += len(piece)
        crc = zlib.crc32(piece, crc)
    return Checksum(size, f"{crc:08x}")


def problem(path: Path, expected: Checksum, *, content: bool = True) -> str:
    """What is wrong with a file, or ""; ``content=False`` compares the size alone."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    found = checksum(path) if content else Checksum(size, expected.crc32)
    return "" if found == expected else f"{path} is damaged: {found} instead of {expected}"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
