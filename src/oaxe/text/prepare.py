"""Parallel text files go in, a prepared folder comes out: one vocabulary and token arrays.

Every file is streamed: memory holds a chunk of lines and the sample that subwords are learned
from, whatever the size of the corpus. The layout of the folder is in :mod:`oaxe.text.manifest`.
"""

import filecmp
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from oaxe.support import strict_json
from oaxe.support.checksums import Checksum, checksum
from oaxe.support.config import check_same
from oaxe.support.errors import UserError
from oaxe.support.files import make_folder, sync, write_json
from oaxe.support.processes import in_order
from oaxe.text.duplicates import Duplicates, hashes_of
from oaxe.text.encode import describe, encode_split
from oaxe.text.guess import ENOUGH, language_of
from oaxe.text.languages import check_code, language_in_name, language_name
from oaxe.text.lines import Chunk, Pair, read_in_chunks, read_parallel
from oaxe.text.manifest import (
    FORMAT,
    MANIFEST,
    SIDES,
    SPLITS,
    SUBWORDS,
    Manifest,
    read_manifest,
    split_files,
    verify_files,
    written_by_prepare,
)
from oaxe.text.subwords import Subwords, train_subwords
from oaxe.text.symbols import SYMBOLS

SAMPLE_PAIRS = 500_000  # subwords are learned from at most this many pairs
SAMPLE_CHARACTERS = 2_000  # of a line; longer ones are not sampled
MOST_WORKERS = 60  # Windows allows 61, and fewer can be fed
SCRATCH = ".unfinished"
OUTPUTS = (MANIFEST, SUBWORDS, *chain.from_iterable(map(split_files, SPLITS)))


def prepare(
    out: Path,
    *,
    source_language: str,
    target_language: str,
    train: Pair,
    valid: Pair | None = None,
    test: Pair | None = None,
    vocab_size: int = 32_000,
    character_coverage: float = 1.0,
    max_length: int | None = 250,
    max_ratio: float | None = None,
    deduplicate: bool = False,
    subwords: Path | None = None,
    seed: int = 1,
    overwrite: bool = False,
    workers: int = 1,
    console: Console | None = None,
) -> Manifest:
    """Make the folder ``out`` from parallel files (plain, ``.gz`` or ``.xz``).

    Only training pairs are filtered by length, ratio and repetition. Pairs with a blank side are
    dropped from every split. All drops are counted in the manifest, with their first lines.

    A finished folder is left alone: with the same options and files its manifest is returned; with
    others it is an error, unless ``overwrite`` replaces it, at the very end. A killed run leaves
    what was there, and the next one begins anew or, if all is written, puts it in place. Files of
    these names from elsewhere are an error.

    Args:
        train: source and target file; also ``valid`` and ``test``.
        vocab_size: pieces of the joint BPE vocabulary, learned from up to 500,000 training pairs.
        character_coverage: see :func:`oaxe.text.subwords.train_subwords`.
        max_length: drop training pairs with more tokens than this on a side; None keeps all.
        max_ratio: drop training pairs whose longer side has more than this many times the tokens
            of the shorter; None keeps all.
        deduplicate: keep only the first of equal training pairs (equal up to NFKC and spaces).
        subwords: use this model and learn none; ``vocab_size`` and ``character_coverage`` are then
            those of the model.
        seed: of the sample of pairs.
        overwrite: replace a finished folder.
        workers: processes that encode the training text; the files are the same with any number.
            A script that asks for more than one must call this under
            ``if __name__ == "__main__"``.
        console: where progress and a summary are shown; None is silent.

    Raises:
        UserError: an option is impossible, a file cannot be used, or nothing is left.
    """
    check_options(out, vocab_size, character_coverage, max_length, max_ratio, workers)
    console = console or Console(quiet=True)
    given = zip(SPLITS, (train, valid, test), strict=True)
    pairs = {split: pair for split, pair in given if pair is not None}
    check_languages(source_language, target_language, pairs)
    for warning in suspicious(source_language, target_language, pairs):
        console.print(f"warning: {warning}")
    inputs = {
        f"{split}.{side}": input_checksum(path)
        for split, pair in pairs.items()
        for side, path in zip(SIDES, pair, strict=True)
    }
    shared = None
    if subwords is not None:
        shared = Subwords.load(subwords)
        inputs[SUBWORDS] = input_checksum(subwords)
    options: dict[str, Any] = {
        "source_language": source_language,
        "target_language": target_language,
        "vocab_size": shared.vocab_size if shared else vocab_size,
        "character_coverage": None if shared else character_coverage,
        "max_length": max_length,
        "max_ratio": max_ratio,
        "deduplicate": deduplicate,
        "seed": seed,
    }
    for path in chain(*pairs.values()):
        if path.resolve().parent == out.resolve() and path.name in OUTPUTS:
            raise UserError(f"{path} would be overwritten; prepare into another folder")
    refuse_foreign(out)
    if (out / SCRATCH / MANIFEST).exists():  # a run was killed at its very end
        move_in(out)
    if (out / MANIFEST).exists() and not overwrite:
        manifest = finished(out, options, inputs)
        shutil.rmtree(out / SCRATCH, ignore_errors=True)
        console.print(f"{out} is already prepared with these options and files: nothing to do")
        return manifest

    bar = Progress(console=console, disable=not console.is_terminal)
    with unfinished(out) as scratch, bar as progress:
        duplicates = Duplicates(scratch) if deduplicate else None
        if shared is None or duplicates:
            advance = follow(progress, "reading train", train)
            sample = scan(train, duplicates, seed, advance, workers, sampled=shared is None)
        if shared is None:
            task = progress.add_task("learning subwords", total=None)
            shared = train_subwords(
                sample, scratch / SUBWORDS, vocab_size, character_coverage=character_coverage
            )
            progress.update(task, total=1, completed=1)
        else:
            (scratch / SUBWORDS).write_bytes(shared.model)
        sample = []  # frees the memory
        filters: dict[str, Any] = {
            "max_length": max_length,
            "max_ratio": max_ratio,
            "repeats": duplicates.repeats() if duplicates else None,
            "workers": workers,
        }
        splits = {}
        for split, pair in pairs.items():
            advance = follow(progress, f"encoding {split}", pair)
            only = filters if split == "train" else {"keep_text": True}
            splits[split] = encode_split(scratch, split, pair, shared, advance=advance, **only)
    names = [SUBWORDS, *chain.from_iterable(map(split_files, splits))]
    manifest = Manifest(
        format=FORMAT,
        source_language=source_language,
        target_language=target_language,
        vocab_size=shared.vocab_size,
        options=options,
        inputs=inputs,
        splits=splits,
        files={name: checksum(scratch / name) for name in names},
    )
    for name in names:
        sync(scratch / name)
    write_json(scratch / MANIFEST, asdict(manifest))
    move_in(out)
    summarise(manifest, console)
    return manifest


def check_options(
    out: Path,
    vocab_size: int,
    character_coverage: float,
    max_length: int | None,
    max_ratio: float | None,
    workers: int,
) -> None:
    """Raises UserError with all impossible options at once."""
    wrong = []
    if out.exists() and not out.is_dir():
        wrong.append(f"{out} is a file; give a folder to write to")
    if vocab_size <= len(SYMBOLS):
        wrong.append(f"the vocabulary size is {vocab_size}; it must be above {len(SYMBOLS)}")
    if not 0.98 <= character_coverage <= 1:  # what SentencePiece takes
        wrong.append(f"the character coverage is {character_coverage}; it must be in [0.98, 1]")
    if max_length is not None and max_length < 1:
        wrong.append(f"the length limit is {max_length}; it must be 1 or more, or none")
    if max_ratio is not None and not max_ratio >= 1:
        wrong.append(f"the ratio limit is {max_ratio}; it must be 1 or more, or none")
    if not 1 <= workers <= MOST_WORKERS:
        wrong.append(f"the number of workers is {workers}; it must be in [1, {MOST_WORKERS}]")
    if wrong:
        raise UserError("; ".join(wrong))


def check_languages(source: str, target: str, pairs: dict[str, Pair]) -> None:
    """Raises UserError for an invalid code, and for files whose names say that they are swapped."""
    for language in (source, target):
        check_code(language)
    for split, pair in pairs.items():
        names = [language_in_name(path, (source, target)) for path in pair]
        if source != target and names == [target, source]:
            raise UserError(
                f"--{split} {pair[0]} {pair[1]} are swapped, by their names: the text to "
                f"translate, in {source}, comes first"
            )


def suspicious(source: str, target: str, pairs: dict[str, Pair]) -> list[str]:
    """Warnings of what is possible, but seldom intended."""
    found = []
    if source == target:
        found.append(f"source and target language are both {source}")
    for split, (a, b) in pairs.items():
        if _same(a, b):
            found.append(f"--{split}: source and target are the same file, {a}")
        if [_looks(path, source, target) for path in (a, b)] == [target, source]:
            found.append(
                f"--{split}: {a} looks like {language_name(target)} and {b} like "
                f"{language_name(source)}; the text to translate comes first: are they swapped?"
            )
    for split in pairs.keys() - {"train"}:
        if all(map(_same, pairs["train"], pairs[split])):
            found.append(f"--{split} is the training text: its scores will be far too good")
    return sorted(found)


def _looks(path: Path, source: str, target: str) -> str:
    try:
        return language_of(next(read_in_chunks(path, ENOUGH)), source, target)
    except UserError:  # raised again when the whole file is read
        return ""


def _same(a: Path, b: Path) -> bool:
    return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)


def input_checksum(path: Path) -> Checksum:
    try:
        return checksum(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the path") from error


def finished(out: Path, options: dict[str, Any], inputs: dict[str, Checksum]) -> Manifest:
    """The manifest of a folder that is undamaged and was made from the same options and files."""
    manifest = read_manifest(out)
    check_same(
        manifest.options | manifest.inputs,
        options | inputs,
        f"{out} was prepared from something else",
        "Choose another folder, or replace this one with --overwrite",
    )
    verify_files(out, manifest, manifest.files)
    return manifest


def refuse_foreign(out: Path) -> None:
    """Raises UserError if files from elsewhere would be replaced, with ``overwrite`` or without."""
    if (out / SCRATCH).is_dir():
        return
    found = [name for name in OUTPUTS if (out / name).exists()]
    if MANIFEST in found:
        try:
            ours = written_by_prepare(strict_json.read(out / MANIFEST))
        except ValueError:  # damaged: it may have been ours
            ours = True
        found = [] if ours else found
    if found:
        raise UserError(
            f"{out} has {' and '.join(found)} already, not from 'oaxe prepare', which would be "
            "overwritten; choose another folder"
        )


def move_in(out: Path) -> None:
    """Put a whole new folder into the place of the old one.

    It needs no room, and if it is killed the next run goes on with it.
    """
    scratch = out / SCRATCH
    new = strict_json.read(scratch / MANIFEST)["files"]
    (out / MANIFEST).unlink(missing_ok=True)
    for name in OUTPUTS[1:]:
        if name not in new:
            (out / name).unlink(missing_ok=True)
        elif (scratch / name).exists():
            (scratch / name).replace(out / name)
    (scratch / MANIFEST).replace(out / MANIFEST)
    sync(out)
    shutil.rmtree(scratch)


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """A folder in ``out`` for the work, which marks ``out`` as ours; an error removes it."""
    is_new, scratch = not out.exists(), out / SCRATCH
    if not (out / MANIFEST).exists():
        for name in OUTPUTS:  # a run was killed as it moved them there
            (out / name).unlink(missing_ok=True)
    shutil.rmtree(scratch, ignore_errors=True)
    make_folder(out)
    scratch.mkdir()
    try:
        yield scratch
    except BaseException:
        shutil.rmtree(scratch)
        if is_new:
            out.rmdir()
        raise


def follow(progress: Progress, title: str, pair: Pair) -> Callable[[int], None]:
    """A progress bar over the bytes of two files."""
    task = progress.add_task(title, total=sum(path.stat().st_size for path in pair))
    return lambda position: progress.update(task, completed=position)


def scan(
    pair: Pair,
    duplicates: Duplicates | None,
    seed: int,
    advance: Callable[[int], None],
    workers: int = 1,
    sampled: bool = True,
) -> list[str]:
    """A uniform sample of the lines (pairs stay together), and all pairs into ``duplicates``."""
    rng = random.Random(seed)
    sample: list[str] = []  # source, target, source, target, ...

    def read() -> Iterator[Chunk]:
        seen = 0
        for chunk in read_parallel(*pair):
            pairs = zip(chunk.sources, chunk.targets, strict=True) if sampled else ()
            for source, target in pairs:
                if max(len(source), len(target)) > SAMPLE_CHARACTERS:
                    continue
                seen += 1
                if seen <= SAMPLE_PAIRS:
                    sample.extend((source, target))
                elif (slot := rng.randrange(seen)) < SAMPLE_PAIRS:
                    sample[2 * slot : 2 * slot + 2] = source, target
            advance(chunk.position)
            yield chunk

    if duplicates is None:
        deque(read(), maxlen=0)  # just reads
        return sample
    with closing(in_order(hashes_of, read(), workers)) as results:
        for hashes in results:
            duplicates.add(hashes)
    return sample


def summarise(manifest: Manifest, console: Console) -> None:
    for name, split in manifest.splits.items():
        console.print(
            f"{name}: {split.pairs:,} pairs, {split.tokens[0]:,} + {split.tokens[1]:,} tokens, "
            f"{sum(split.unknown):,} unknown"
        )
        if split.dropped:
            files = " and ".join(split.files)
            console.print(f"  dropped from {files}: {describe(split.dropped)}")
