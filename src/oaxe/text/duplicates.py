"""Pairs of lines go in, a mask of the repeated ones comes out; memory does not grow with them."""

import unicodedata
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oaxe.text.lines import Chunk

BUCKETS = 128
HASH_BYTES = 16


class Duplicates:
    """Finds pairs that were seen before, up to NFKC and spaces.

    The 128-bit hash of a pair is appended to one of 128 files by its last bits; equal pairs meet
    in the same file, and one file at a time is sorted in memory (4 MB for 20 million pairs).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = [folder / f"hashes.{i}" for i in range(BUCKETS)]
        self._pairs = 0

    def add(self, hashes: bytes) -> None:
        """Take in the hashes of the next pairs, see :func:`hashes_of`."""
        count = len(hashes) // HASH_BYTES
        records = np.empty((count, 3), np.uint64)  # hash, hash, number of the pair
        records[:, :2] = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        records[:, 2] = np.arange(self._pairs, self._pairs + count)
        self._pairs += count
        bucket = records[:, 0] % BUCKETS
        order = np.argsort(bucket, kind="stable")
        ends = np.cumsum(np.bincount(bucket.astype(np.int64), minlength=BUCKETS))
        for path, group in zip(self._files, np.split(records[order], ends[:-1]), strict=True):
            with path.open("ab") as file:
                file.write(group.tobytes())

    def repeats(self) -> NDArray[np.bool_]:
        """``(pairs,)``, on disk: True for every pair but the first of its kind."""
        mask = np.memmap(self._folder / "repeats", bool, "w+", shape=max(self._pairs, 1))
        for path in self._files:
            records = np.fromfile(path, np.uint64).reshape(-1, 3)
            records = records[np.lexsort(records.T[::-1])]  # by hash, then by number
            same = (records[1:, :2] == records[:-1, :2]).all(axis=1)
            mask[records[1:, 2][same]] = True
        return mask


def hashes_of(chunk: Chunk) -> bytes:
    """The hashes of all pairs in a row; pairs that are equal up to NFKC and spaces share one."""
    return b"".join(
        blake2b(f"{plain(s)}\n{plain(t)}".encode(), digest_size=HASH_BYTES).digest()
        for s, t in zip(chunk.sources, chunk.targets, strict=True)
    )


def plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())
