"""A data set by its name: its files, fetched if need be and checked, ready for `oaxe prepare`.

FOLDER/NAME/train.en, train.de, valid.en, ...   as the catalogue names them, plain, .gz or .xz
FOLDER/NAME/archives/                           what was downloaded; not needed afterwards
FOLDER/NAME/SHA256SUMS                          of what was fetched; FOLDER may have one for all
"""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole
from oaxe.text.datasets.archives import join_archives
from oaxe.text.datasets.catalogue import CATALOGUE, Entry, find
from oaxe.text.datasets.checksums import SUMS, check, read_sums, record
from oaxe.text.datasets.download import download
from oaxe.text.lines import OPENERS

ARCHIVES = "archives"

Pair = tuple[Path, Path]


@dataclass(frozen=True)
class Dataset:
    """Files of source and target, and the settings that suit them."""

    source_language: str
    target_language: str
    train: Pair | None
    valid: Pair | None
    test: Pair
    others: tuple[Path, ...]  # with more references, see the catalogue; none if it is turned
    vocab_size: int
    character_coverage: float

    def prepare_command(self, out: str) -> str:
        """What to type next."""
        words = ["oaxe", "prepare", out, "--from", self.source_language]
        words += ["--to", self.target_language, "--vocab-size", str(self.vocab_size)]
        if self.character_coverage < 1:
            words += ["--character-coverage", str(self.character_coverage)]
        for split, pair in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            if pair is not None:
                words += [f"--{split}", *map(str, pair)]
        return shlex.join(words)

    def evaluate_command(self) -> str:
        """The same, where there is nothing to train on."""
        source, reference = self.test
        words = ["oaxe", "evaluate", "--model", "RUN", "--source", str(source)]
        for path in (reference, *self.others):
            words += ["--ref", str(path)]
        return shlex.join([*words, "--lang", self.target_language])


def dataset(name: str, folder: Path, console: Console | None = None) -> Dataset:
    """The data set of that name in ``folder / name``; what is missing there is downloaded.

    Turn the languages to turn the data set: ``wmt14-de-en`` has the files of ``wmt14-en-de``.

    Args:
        name: see :data:`oaxe.text.datasets.catalogue.CATALOGUE`.
        folder: that holds data sets, or is to hold them.
        console: where progress is shown; None is silent.

    Raises:
        UserError: there is no such data set, it cannot be had, or a file is not what it was.
    """
    name, turned = find(name)
    entry, here = CATALOGUE[name], folder / name
    pairs: dict[str, Pair] = {}
    for split, files in entry.splits.items():
        if not all(present(here, file) for file in files):
            get_split(name, split, here, console or Console(quiet=True))
        first, second = (present(here, file) or here / file for file in files)
        pairs[split] = (second, first) if turned else (first, second)
    of_target = () if turned else entry.others
    others = tuple(path for other in of_target if (path := present(here, other)))
    of_all, of_this = read_sums(folder), read_sums(here)
    for path in (*(path for pair in pairs.values() for path in pair), *others):
        check(path, of_all.get(f"{name}/{path.name}") or of_this.get(path.name))
    source, target = entry.languages[::-1] if turned else entry.languages
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
    """Fetch both files of a split."""
    entry = CATALOGUE[name]
    first, second = entry.splits[split]
    outputs = here / first, here / second
    try:
        if split in entry.test_sets:
            here.mkdir(parents=True, exist_ok=True)
            copy_test_set(entry.test_sets[split], entry.languages, outputs)
        elif split == "train" and entry.archives:
            (here / ARCHIVES).mkdir(parents=True, exist_ok=True)
            archives = [get_archive(archive.url, archive.sha256, here, console)
                        for archive in entry.archives]  # fmt: skip
            members = [archive.members for archive in entry.archives]
            console.print(f"putting {first} and {second} together", highlight=False)
            join_archives(list(zip(archives, members, strict=True)), outputs)
            record(here, *(f"{ARCHIVES}/{path.name}" for path in archives))
        else:
            raise UserError(missing(entry, outputs))
        record(here, first, second)
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


def get_archive(url: str, sha256: str | None, here: Path, console: Console) -> Path:
    """The archive on this machine: the one that came first, where we know no checksum."""
    name = f"{ARCHIVES}/{url.rsplit('/', 1)[-1]}"
    path, expected = here / name, sha256 or read_sums(here).get(name)
    if path.is_file():
        check(path, expected)
        return path
    download(url, path, expected, console)
    if expected is None:  # a file that cannot be read should not be kept to
        console.print(
            f"its SHA-256 is not known to us; recorded in {here / SUMS} if it can be read",
            highlight=False,
        )
    return path


def copy_test_set(test_set: str, languages: tuple[str, str], outputs: Pair) -> None:
    """A test set of WMT as sacreBLEU has it: downloaded and checked by it."""
    from sacrebleu.utils import SACREBLEU_DIR, get_reference_files, get_source_file

    pair = "-".join(languages)
    try:
        found = get_source_file(test_set, pair), get_reference_files(test_set, pair)[0]
    except (Exception, SystemExit) as error:  # it raises plain exceptions, or leaves
        raise UserError(
            f"sacreBLEU could not get the test set {test_set}: {error}. Look at its cache in "
            f"{SACREBLEU_DIR}, or put the files there yourself: {outputs[0]} and {outputs[1].name}"
        ) from error
    for path, output in zip(found, outputs, strict=True):
        with open(path, "rb") as text, appears_whole(output) as file:
            shutil.copyfileobj(text, file)
