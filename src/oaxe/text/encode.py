"""Pairs of lines go in, token arrays on disk come out: one split, a chunk of lines at a time.

Pairs that are dropped are counted by reason.
"""

from collections.abc import Callable, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from oaxe.support.errors import UserError
from oaxe.text.lines import read_parallel
from oaxe.text.manifest import SIDES, Dropped, Split
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import UNK

NAMED_LINES = 10  # dropped lines that the manifest names for each reason


def encode_split(
    out: Path,
    split: str,
    pair: tuple[Path, Path],
    subwords: Subwords,
    *,
    max_length: int | None = None,
    max_ratio: float | None = None,
    repeats: NDArray[np.bool_] | None = None,
    keep_text: bool = False,
    advance: Callable[[int], None] = lambda position: None,
) -> Split:
    """Write the pairs that are kept, and return their numbers.

    Args:
        out: folder for the files of the split.
        pair: files of source and target.
        max_length, max_ratio: drop pairs beyond; None keeps all.
        repeats: ``(pairs,)``, True for pairs to drop.
        keep_text: also write the lines as they are, for BLEU.
        advance: called with the number of bytes read so far.

    Raises:
        UserError: a file cannot be read, or nothing is left.
    """
    sides = [Side(out / f"{split}.{side}", subwords.vocab_size, keep_text) for side in SIDES]
    dropped: dict[str, Dropped] = {}
    for chunk in read_parallel(*pair):
        lines = (chunk.sources, chunk.targets)
        ids = [subwords.encode(text) for text in lines]
        lengths = np.array([[*map(len, side)] for side in ids])  # (2, pairs)
        blank = np.array([[not line.strip() for line in side] for side in lines])
        first, count = chunk.first_line - 1, lengths.shape[1]
        keep = np.ones(count, bool)
        for reason, applies in {
            "blank source": blank[0],
            "blank target": blank[1],
            "repeated": repeats is not None and repeats[first : first + count],
            "source too long": max_length is not None and lengths[0] > max_length,
            "target too long": max_length is not None and lengths[1] > max_length,
            "ratio too high": max_ratio is not None and lengths.max(0) > max_ratio * lengths.min(0),
        }.items():
            hits = np.flatnonzero(keep & applies)  # a pair counts for the first that applies
            keep[hits] = False
            if len(hits):
                before = dropped.get(reason, Dropped(0, []))
                named = before.lines + (hits[:NAMED_LINES] + chunk.first_line).tolist()
                dropped[reason] = Dropped(before.count + len(hits), named[:NAMED_LINES])
        for side, side_ids, text in zip(sides, ids, lines, strict=True):
            side.append([*compress(side_ids, keep)], [*compress(text, keep)])
        advance(chunk.position)
    for side in sides:
        side.close()
    pairs = sides[0].offsets.size - 1
    if pairs == 0:
        raise UserError(f"no pair of {pair[0]} and {pair[1]} is left: {describe(dropped)}")
    return Split(
        files=[str(path) for path in pair],
        pairs=pairs,
        tokens=[side.tokens.size for side in sides],
        unknown=[side.unknown for side in sides],
        dropped=dropped,
    )


def describe(dropped: dict[str, Dropped]) -> str:
    """As in "12 blank source (line 4, 9, ...)"."""
    return "; ".join(
        f"{what.count:,} {reason} (line {', '.join(map(str, what.lines))}"
        f"{', ...' * (what.count > len(what.lines))})"
        for reason, what in dropped.items()
    )


class Side:
    """The files of one language of a split."""

    def __init__(self, stem: Path, vocab_size: int, keep_text: bool) -> None:
        small = vocab_size <= 1 << 16
        self.tokens = GrowingArray(Path(f"{stem}.tokens.npy"), np.uint16 if small else np.int32)
        self.offsets = GrowingArray(Path(f"{stem}.offsets.npy"), np.int64)
        self.offsets.append(np.zeros(1))
        self.unknown = 0
        self._text = open(f"{stem}.txt", "wb") if keep_text else None  # noqa: SIM115

    def append(self, ids: Sequence[Sequence[int]], lines: Sequence[str]) -> None:
        self.offsets.append(self.tokens.size + np.cumsum([*map(len, ids)]))
        flat = np.fromiter(chain.from_iterable(ids), self.tokens.dtype)
        self.tokens.append(flat)
        self.unknown += int(np.count_nonzero(flat == UNK))
        if self._text:
            self._text.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        self.tokens.close()
        self.offsets.close()
        if self._text:
            self._text.close()


class GrowingArray:
    """An ``.npy`` file of one dimension, written piece by piece."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.size = 0
        self.dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(values.astype(self.dtype, copy=False).tobytes())
        self.size += len(values)

    def close(self) -> None:
        end = self._file.tell()
        self._file.seek(0)
        self._write_header()
        assert end - self._file.tell() == self.size * self.dtype.itemsize
        self._file.close()

    def _write_header(self) -> None:
        # numpy pads the header so that the length of the first axis may grow in place.
        descr = np.lib.format.dtype_to_descr(self.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.size,)}
        np.lib.format.write_array_header_1_0(self._file, header)
