"""The name of a data set goes in; its files come out, downloaded if need be and verified.

FOLDER/NAME/train.en, train.de, valid.en, ...   as the catalogue names them, plain, .gz or .xz
FOLDER/NAME/archives/                           downloads; not needed afterwards
FOLDER/NAME/SHA256SUMS                          of downloaded files; FOLDER may have one for all
"""

import shlex
import shutil
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console

from oaxe.support.checksums import sha256
from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole, write_whole
from oaxe.text.datasets.archives import join_archives
from oaxe.text.datasets.catalogue import CATALOGUE, Archive, Entry, find
from oaxe.text.datasets.download import download
from oaxe.text.lines import OPENERS, Lines, Pair

ARCHIVES, SUMS = "archives", "SHA256SUMS"


@dataclass(frozen=True)
class Dataset:
    """Files of source and target, and the settings that suit them."""

    source_language: str
    target_language: str
    train: Pair | None
    valid: Pair | None
    test: Pair
    others: tuple[Path, ...]  # with more references of the target; none if it is swapped
    vocab_size: int
    character_coverage: float

    def prepare_command(self, out: str) -> str:
        """The command to type next."""
        words = ["oaxe", "prepare", out, "--from", self.source_language]
        words += ["--to", self.target_language, "--vocab-size", str(self.vocab_size)]
        if self.character_coverage < 1:
            words += ["--character-coverage", str(self.character_coverage)]
        for split, pair in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            if pair is not None:
                words += [f"--{split}", *map(str, pair)]
        return shlex.join(words)

    def evaluate_command(self) -> str:
        """The same for a data set without training text."""
        source, reference = self.test
        words = ["oaxe", "evaluate", "--model", "RUN", "--source", str(source)]
        for path in (reference, *self.others):
            words += ["--ref", str(path)]
        return shlex.join([*words, "--lang", self.target_language])


def dataset(name: str, folder: Path, console: Console | None = None) -> Dataset:
    """The data set of that name in ``folder / name``; files that are missing are downloaded.

    Languages may be swapped: ``wmt14-de-en`` has the files of ``wmt14-en-de``.

    Raises:
        UserError: the data set is unknown or cannot be downloaded, or a file has changed.
    """
    name, swapped = find(name)
    entry, here = CATALOGUE[name], folder / name
    pairs: dict[str, Pair] = {}
    for split, files in entry.files.items():
        if not all(present(here, file) for file in files):
            get_split(name, split, here, console or Console(quiet=True))
        first, second = (present(here, file) or here / file for file in files)
        pairs[split] = (second, first) if swapped else (first, second)
    of_target = () if swapped else entry.others
    others = tuple(path for other in of_target if (path := present(here, other)))
    of_all, of_this = read_sums(folder), read_sums(here)
    for path in (*chain.from_iterable(pairs.values()), *others):
        check_sum(path, of_all.get(f"{name}/{path.name}") or of_this.get(path.name))
    source, target = entry.languages[::-1] if swapped else entry.languages
    return Dataset(
        source,
        target,
        train=pairs.get("train"),
        valid=pairs.get("valid"),
        test=pairs["test"],
        others=others,
        vocab_size=entry.vocab_size,
        character_coverage=entry.character_coverage,
    )


def present(folder: Path, name: str) -> Path | None:
    """The file, as it is or compressed."""
    paths = (folder / f"{name}{ending}" for ending in ("", *OPENERS))
    return next((path for path in paths if path.is_file()), None)


def get_split(name: str, split: str, here: Path, console: Console) -> None:
    """Download or put together both files of a split, and record their checksums."""
    entry = CATALOGUE[name]
    first, second = entry.files[split]
    outputs = here / first, here / second
    try:
        if split in entry.test_sets:
            here.mkdir(parents=True, exist_ok=True)
            copy_test_set(entry.test_sets[split], entry.languages, outputs)
        elif split == "train" and entry.archives:
            (here / ARCHIVES).mkdir(parents=True, exist_ok=True)
            found = [(get_archive(a, here, console), a.members) for a in entry.archives]
            console.print(f"putting {first} and {second} together")
            join_archives(found, outputs)
            record_sums(here, *(f"{ARCHIVES}/{path.name}" for path, _ in found))
        else:
            raise UserError(missing(entry, outputs))
        record_sums(here, first, second)
    except OSError as error:
        raise UserError(
            f"a file could not be read or written: {error}; {here} must be writable, with room for "
            "the data set twice. Then run the same command again"
        ) from error


def missing(entry: Entry, outputs: Pair) -> str:
    first, second = outputs
    what = entry.by_hand or "put the files there, one sentence a line"
    return (
        f"there is no {first} and {second.name}, and nothing that could be downloaded: {what}; or "
        f"name the folder that has {first.parent.name} with --folder or OAXE_DATA. "
        f"Origin: {entry.origin}"
    )


def get_archive(archive: Archive, here: Path, console: Console) -> Path:
    """The downloaded archive; without a published checksum, the same as the first download."""
    name = f"{ARCHIVES}/{archive.url.rsplit('/', 1)[-1]}"
    path, expected = here / name, archive.sha256 or read_sums(here).get(name)
    if path.is_file():
        check_sum(path, expected)
        return path
    download(archive.url, path, expected, console)
    if expected is None:  # recorded only once it could be read
        console.print(
            f"its SHA-256 is not known to us; recorded in {here / SUMS} if it can be read"
        )
    return path


def copy_test_set(test_set: str, languages: tuple[str, str], outputs: Pair) -> None:
    """Copy a test set of WMT from sacreBLEU, which downloads and verifies it."""
    from sacrebleu.utils import SACREBLEU_DIR, get_reference_files, get_source_file

    pair = "-".join(languages)
    try:
        found = get_source_file(test_set, pair), get_reference_files(test_set, pair)[0]
    except (Exception, SystemExit) as error:  # it raises plain exceptions, or exits
        raise UserError(
            f"sacreBLEU could not get the test set {test_set}: {error}. Look at its cache in "
            f"{SACREBLEU_DIR}, or put the files there yourself: {outputs[0]} and {outputs[1].name}"
        ) from error
    for path, output in zip(found, outputs, strict=True):
        with open(path, "rb") as text, appears_whole(output) as file:
            shutil.copyfileobj(text, file)


def read_sums(folder: Path) -> dict[str, str]:
    """Digests by name from a file of `sha256sum` in the folder; empty if there is none."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    sums = {}
    with Lines(path) as lines:
        for line in iter(lines.read, None):
            match line.split(maxsplit=1):
                case [digest, name]:
                    sums[name.removeprefix("*").removeprefix("./")] = digest
                case [_]:
                    raise UserError(
                        f"{path}, line {lines.number} must be a SHA-256 and the name of a file; "
                        f"got {line[:80]!r}: correct it, or make the list again with sha256sum"
                    )
    return sums


def record_sums(folder: Path, *names: str) -> None:
    """Add files of the folder to its list."""
    sums = read_sums(folder) | {name: sha256(folder / name) for name in names}
    write_whole(folder / SUMS, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))


def check_sum(path: Path, expected: str | None) -> None:
    """Raises UserError if the file has another SHA-256; None is not known and not checked."""
    if expected is not None and (found := sha256(path)) != expected:
        raise UserError(
            f"{path} has the SHA-256 {found}, its list says {expected}; it was changed or damaged: "
            "get it again"
        )
