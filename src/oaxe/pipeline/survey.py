"""Counts and lengths of the training text, for the plan; and validation text, held out of it."""

import unicodedata
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole
from oaxe.text.lines import Pair, read_pairs
from oaxe.text.manifest import SIDES
from oaxe.text.symbols import SYMBOLS

WORDS_FROM = 100_000  # pairs that words are collected from
LENGTHS_FROM = 4_000  # pairs that the plan takes lengths from
CHARACTERS_A_SUBWORD = 4  # about
MOST_HELD_OUT, SHARE_HELD_OUT = 1_000, 20  # pairs; one of so many


@dataclass(frozen=True)
class Survey:
    pairs: int
    lengths: list[tuple[int, int]]  # of source and target, about, in subwords
    most_subwords: int  # a vocabulary of this size can be learned from the text


def survey(pair: Pair) -> Survey:
    """Read the text; raises UserError for files that are missing, damaged or not parallel."""
    pairs, lengths = 0, list[tuple[int, int]]()
    words, characters = set[str](), set[str]()
    for source, target in read_pairs(*pair):
        pairs += 1
        if pairs <= LENGTHS_FROM:
            lengths.append((_subwords(source), _subwords(target)))
        if pairs <= WORDS_FROM:
            for line in (source, target):
                characters.update(line)
                words.update(line.split())
    if not words:
        raise UserError(f"{pair[0]} and {pair[1]} have no words: every line is blank; check them")
    # The last merge of BPE makes one piece of each word of letters.
    plain = {unicodedata.normalize("NFKC", word) for word in words if word.isalpha()}
    return Survey(pairs, lengths, len(SYMBOLS) + len(characters) + len(plain))


def _subwords(line: str) -> int:
    return max(1, round(len(line) / CHARACTERS_A_SUBWORD))


def held_out(pairs: int) -> range:
    """Numbers of the pairs, counted from 0, that validate in place of ``--valid``.

    Example:
        >>> list(held_out(60)), len(held_out(1_000_000))
        ([10, 30, 50], 1000)
    """
    count = min(MOST_HELD_OUT, pairs // SHARE_HELD_OUT)
    if not count:
        raise UserError(
            f"of {pairs} training pairs none can be held out for validation; give --valid, or at "
            f"least {SHARE_HELD_OUT} pairs"
        )
    every = pairs // count
    return range(every // 2, every * count, every)


def hold_out(folder: Path, pair: Pair, pairs: int) -> None:
    """Write ``train`` and ``valid``, ``.source`` and ``.target``; train has no pair of valid."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = held_out(pairs)
    held = {lines for number, lines in enumerate(read_pairs(*pair)) if number in numbers}
    with ExitStack() as stack:  # train.source is the last to get its name
        train, valid = (
            [stack.enter_context(appears_whole(folder / f"{split}.{side}")) for side in SIDES]
            for split in ("train", "valid")
        )
        for number, lines in enumerate(read_pairs(*pair)):
            if number not in numbers and lines in held:
                continue
            files = valid if number in numbers else train
            for file, line in zip(files, lines, strict=True):
                file.write(line.encode() + b"\n")
