"""Pairs of lines go in, token arrays on disk come out: one split, a chunk of lines at a time.

Pairs that are dropped are counted by reason.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from oaxe.support.errors import UserError
from oaxe.support.processes import in_order
from oaxe.text.lines import Chunk, Pair, read_parallel
from oaxe.text.manifest import SIDES, Dropped, Split
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import UNK

NAMED_LINES = 10  # dropped lines that the manifest names for each reason


def encode_split(
    out: Path,
    split: str,
    pair: Pair,
    subwords: Subwords,
    *,
    max_length: int | None = None,
    max_ratio: float | None = None,
    repeats: NDArray[np.bool_] | None = None,
    keep_text: bool = False,
    workers: int = 1,
    advance: Callable[[int], None] = lambda position: None,
) -> Split:
    """Write the pairs that are kept, and return their counts.

    Args:
        max_length, max_ratio: drop pairs beyond; None keeps all.
        repeats: ``(pairs,)``, True for pairs to drop.
        keep_text: also write the lines as they are, for BLEU.
        workers: processes that encode; 1 is this one, with a thread for each core.
        advance: called with the number of bytes read so far.

    Raises:
        UserError: a file cannot be read, a process was killed, or nothing is left.
    """
    sides = [Side(out / f"{split}.{side}", subwords.vocab_size, keep_text) for side in SIDES]
    dropped: dict[str, Dropped] = {}
    encoder = Encoder(subwords, max_length, max_ratio, keep_text, -1 if workers == 1 else 1)
    chunks = with_repeats(read_parallel(*pair), repeats)
    with closing(in_order(encoder, chunks, workers)) as results:
        for encoded in results:
            for reason, lines in encoded.dropped.items():
                before = dropped.get(reason, Dropped(0, []))
                named = (before.lines + lines[:NAMED_LINES].tolist())[:NAMED_LINES]
                dropped[reason] = Dropped(before.count + len(lines), named)
            for side, kept in zip(sides, encoded.kept, strict=True):
                side.append(kept)
            advance(encoded.position)
    for side in sides:
        side.close()
    pairs = sides[0].offsets.size - 1
    if pairs == 0:
        raise UserError(
            f"no pair of {pair[0]} and {pair[1]} is left: {describe(dropped)}; "
            "give other text, or keep more of it with --max-length and --max-ratio"
        )
    return Split(
        files=[str(path) for path in pair],
        pairs=pairs,
        tokens=[side.tokens.size for side in sides],
        unknown=[side.unknown for side in sides],
        dropped=dropped,
    )


def with_repeats(
    chunks: Iterable[Chunk], repeats: NDArray[np.bool_] | None
) -> Iterator[tuple[Chunk, NDArray[np.bool_] | None]]:
    """Each chunk with its own part of the mask, which is on disk."""
    for chunk in chunks:
        first = chunk.first_line - 1
        last = first + len(chunk.sources)
        yield chunk, None if repeats is None else np.array(repeats[first:last])


class Kept(NamedTuple):
    """One language of the pairs of a chunk that are kept."""

    tokens: NDArray[Any]  # flat
    lengths: NDArray[np.int64]  # (pairs,)
    text: bytes  # the lines as they are, if wanted


class Encoded(NamedTuple):
    kept: list[Kept]  # source, target
    dropped: dict[str, NDArray[np.int64]]  # numbers of the lines by reason
    position: int  # of the chunk


@dataclass(frozen=True)
class Encoder:
    """Encodes a chunk, in any process."""

    subwords: Subwords
    max_length: int | None
    max_ratio: float | None
    keep_text: bool
    threads: int

    def __call__(self, part: tuple[Chunk, NDArray[np.bool_] | None]) -> Encoded:
        chunk, repeats = part
        sides, dtype = (chunk.sources, chunk.targets), dtype_of(self.subwords.vocab_size)
        ids = [self.subwords.encode(lines, self.threads) for lines in sides]
        lengths = np.array([[*map(len, side)] for side in ids])  # (2, pairs)
        blank = np.array([[not line.strip() for line in side] for side in sides])
        longest, ratio = self.max_length, self.max_ratio
        keep, dropped = np.ones(lengths.shape[1], bool), {}
        for reason, applies in {
            "blank source": blank[0],
            "blank target": blank[1],
            "repeated": repeats is not None and repeats,
            "source too long": longest is not None and lengths[0] > longest,
            "target too long": longest is not None and lengths[1] > longest,
            "ratio too high": ratio is not None and lengths.max(0) > ratio * lengths.min(0),
        }.items():
            hits = np.flatnonzero(keep & applies)  # a pair counts for the first that applies
            keep[hits] = False
            if len(hits):
                dropped[reason] = hits + chunk.first_line
        kept = [
            Kept(
                np.fromiter(chain.from_iterable(compress(side, keep)), dtype),
                counts[keep],
                "".join(f"{line}\n" for line in compress(lines, keep)).encode()
                if self.keep_text
                else b"",
            )
            for side, counts, lines in zip(ids, lengths, sides, strict=True)
        ]
        return Encoded(kept, dropped, chunk.position)


def dtype_of(vocab_size: int) -> DTypeLike:
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def describe(dropped: dict[str, Dropped]) -> str:
    """Reasons with their counts and lines: "12 blank source (line 4, 9, ...)"."""
    return "; ".join(
        f"{what.count:,} {reason} (line {', '.join(map(str, what.lines))}"
        f"{', ...' * (what.count > len(what.lines))})"
        for reason, what in dropped.items()
    )


class Side:
    """The files of one language of a split."""

    def __init__(self, stem: Path, vocab_size: int, keep_text: bool) -> None:
        self.tokens = GrowingArray(Path(f"{stem}.tokens.npy"), dtype_of(vocab_size))
        self.offsets = GrowingArray(Path(f"{stem}.offsets.npy"), np.int64)
        self.offsets.append(np.zeros(1))
        self.unknown = 0
        self._text = open(f"{stem}.txt", "wb") if keep_text else None  # noqa: SIM115

    def append(self, kept: Kept) -> None:
        self.offsets.append(self.tokens.size + np.cumsum(kept.lengths))
        self.tokens.append(kept.tokens)
        self.unknown += int(np.count_nonzero(kept.tokens == UNK))
        if self._text:
            self._text.write(kept.text)

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
