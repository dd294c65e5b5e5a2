"""A prepared folder: token arrays, mapped from disk, and subwords.

Every file is compared with its checksum when it is opened: token ids mean nothing with the subwords
of another folder.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oaxe.support.errors import UserError
from oaxe.text.manifest import SIDES, SUBWORDS, read_manifest, split_files, verify_files
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import EOS


class Sentences:
    """One side of a corpus: flat token ids without special symbols, and where sentences begin."""

    def __init__(self, tokens: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self.tokens = tokens  # (all tokens,)
        self.offsets = offsets  # (sentences + 1,)
        self.lengths = np.diff(offsets).astype(np.int32)  # (sentences,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> NDArray[Any]:
        i = range(len(self))[i]  # IndexError, and -1 is the last
        return self.tokens[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[i] for i in range(len(self)))

    def first(self, count: int) -> "Sentences":
        return Sentences(self.tokens, self.offsets[: count + 1])


class Corpus:
    """Sentence pairs of one split of a prepared folder."""

    def __init__(self, sources: Sentences, targets: Sentences, stem: Path | None = None) -> None:
        self.sources = sources
        self.targets = targets
        self._stem = stem

    @classmethod
    def open(cls, folder: Path, split: str, *, verify: bool = True) -> "Corpus":
        """Map the files of a split into memory, and verify them and the subwords.

        Args:
            folder: made by :func:`oaxe.text.prepare.prepare`.
            split: ``"train"``, ``"valid"`` or ``"test"``.
            verify: compare the files with their checksums (reads them once: about a second for
                a gigabyte); otherwise only their sizes.

        Raises:
            UserError: the folder or the split is missing, unfinished or damaged.
        """
        manifest = read_manifest(folder)
        if split not in manifest.splits:
            raise UserError(
                f"{folder} has no split {split!r}, only {', '.join(manifest.splits)}; "
                "run 'oaxe prepare' with files for it"
            )
        verify_files(folder, manifest, [SUBWORDS, *split_files(split)], content=verify)
        sides, expected = [], manifest.splits[split]
        for side, n_tokens in zip(SIDES, expected.tokens, strict=True):
            stem = folder / f"{split}.{side}"
            tokens, offsets = (load(Path(f"{stem}.{kind}.npy")) for kind in ("tokens", "offsets"))
            if len(offsets) != expected.pairs + 1 or len(tokens) != n_tokens:
                raise UserError(
                    f"{stem} has {len(offsets) - 1:,} sentences and {len(tokens):,} tokens, the "
                    f"manifest says {expected.pairs:,} and {n_tokens:,}; "
                    "run 'oaxe prepare' again, with --overwrite"
                )
            sides.append(Sentences(tokens, offsets))
        source, target = sides
        return cls(source, target, folder / split)

    def with_references(self, others: "Sequence[Corpus]") -> "Corpus":
        """Each target is followed by those that others have for the same source, EOS between.

        Raises:
            UserError: one of them has none of the sources.
        """
        if not others:
            return self
        sources = [source.tobytes() for source in self.sources]
        end = np.array([EOS], dtype=self.targets.tokens.dtype)
        targets = [[target] for target in self.targets]
        for other in others:
            known = {source.tobytes(): i for i, source in enumerate(other.sources)}
            if known.keys().isdisjoint(sources):
                raise UserError(
                    f"{other._stem} has none of the sources of {self._stem}: references are other "
                    "targets of the same sources, with the same subwords"
                )
            for source, target in zip(sources, targets, strict=True):
                if (i := known.get(source)) is not None:
                    target += [end, other.targets[i]]
        lengths = [sum(map(len, target)) for target in targets]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        parts = [part for target in targets for part in target]
        return Corpus(self.sources, Sentences(np.concatenate(parts), offsets), self._stem)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """``(pairs,)`` tokens of each source, without special symbols."""
        return self.sources.lengths

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        return self.targets.lengths

    @cached_property
    def sources_text(self) -> list[str]:
        """The lines as they were given; valid and test have them."""
        return self._text("source")

    @cached_property
    def targets_text(self) -> list[str]:
        return self._text("target")

    def _text(self, side: str) -> list[str]:
        path = Path(f"{self._stem}.{side}.txt")
        if self._stem is None or not path.exists():
            raise UserError(f"{self._stem or 'this corpus'} keeps no text; valid and test do")
        # Not splitlines: U+2028 and its like belong to the sentence.
        return path.read_bytes().decode().split("\n")[:-1]


def load(path: Path) -> NDArray[Any]:
    # A plain view: indexing a np.memmap makes an object of its class each time, and is slower.
    return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)


def load_subwords(folder: Path) -> Subwords:
    """The subwords of a prepared folder; raises UserError if they were changed."""
    verify_files(folder, read_manifest(folder), [SUBWORDS])
    return Subwords.load(folder / SUBWORDS)
