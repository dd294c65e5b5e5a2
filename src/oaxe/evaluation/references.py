"""The test set: one or more references a sentence, and the source sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from oaxe.support import strict_json
from oaxe.support.errors import UserError
from oaxe.text.corpus import Corpus
from oaxe.text.languages import check_code
from oaxe.text.lines import read_lines, unequal
from oaxe.text.manifest import read_manifest


@dataclass(frozen=True)
class References:
    texts: list[list[str]]  # one or more a sentence; blank only if all of the sentence are
    sources: list[str] | None  # needed only for models that translate them
    language: str
    files: list[Path]  # the source is the last
    notes: list[str] = field(default_factory=list)  # for the reader of the report
    source_language: str = ""  # where it is known

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def first(self) -> list[str]:
        """The first reference of each sentence. Its length is the length of the sentence."""
        return [texts[0] for texts in self.texts]

    @property
    def most(self) -> int:
        """The largest number of references of a sentence."""
        return max(map(len, self.texts))

    @property
    def streams(self) -> list[list[Any]]:
        """One list a reference, as sacreBLEU wants them; None where a sentence has fewer."""
        return [list(stream) for stream in zip_longest(*self.texts)]


def read_references(
    *,
    references: Sequence[Path] = (),
    multiref: Path | None = None,
    data: Path | None = None,
    split: str = "test",
    source: Path | None = None,
    language: str | None = None,
) -> References:
    """Read a test set in one of three formats.

    Args:
        references: text files; line n of each translates sentence n.
        multiref: JSON lines ``{"src": ..., "refs": [...]}`` with any number of references.
        data: a prepared folder, whose ``split`` is read.
        source: the source text, with ``references`` only.
        language: language of the references; a prepared folder has its own.

    Raises:
        UserError: no format or several are given, the language is no code, or a file cannot be
            read, is empty, or has another number of lines.
    """
    formats = {"--ref": references, "--multiref": multiref, "--data": data}
    given = [name for name, value in formats.items() if value]
    if len(given) != 1:
        raise UserError(
            f"references come from one of {', '.join(formats)}; got {' and '.join(given) or 'none'}"
        )
    if source is not None and not references:
        raise UserError(f"--source goes with --ref; {given[0]} has its own sources")
    if language:
        check_code(language)
    if data is not None:
        return _from_folder(data, split, language)
    if multiref is not None:
        return _from_json_lines(multiref, language or "")
    return _from_files(references, source, language or "")


def check_lines(path: Path, lines: Sequence[str], reference: Path, first: Sequence[str]) -> None:
    """Raises UserError if a file has another number of lines than the first reference."""
    n, m = len(lines), len(first)
    if n != m:
        rest_is_blank = not any(line.strip() for line in (*lines[m:], *first[n:]))
        advice = (
            "line n of one must belong to line n of the other; write a blank line for a sentence "
            "without translation"
        )
        raise unequal(path, n, reference, m, rest_is_blank, advice)


def blank_note(path: Path | str, are_blank: Sequence[bool], where: str = "") -> list[str]:
    """A note on blank lines, if there are any."""
    count, total = sum(are_blank), len(are_blank)
    verb = "is" if count == 1 else "are"
    return [f"{count:,} of {total:,} lines of {path} {verb} blank{where}"] if count else []


def _from_files(paths: Sequence[Path], source: Path | None, language: str) -> References:
    files = [*paths, *([] if source is None else [source])]
    lines = [read_lines(path) for path in files]
    for path, text in zip(files, lines, strict=True):
        check_lines(path, text, files[0], lines[0])
    notes = [
        note
        for path, text in zip(paths, lines, strict=False)
        for note in blank_note(path, [not line.strip() for line in text])
    ]
    texts = [_without_blanks(refs) for refs in zip(*lines[: len(paths)], strict=True)]
    return References(texts, None if source is None else lines[-1], language, files, notes)


def _from_folder(folder: Path, split: str, language: str | None) -> References:
    if split not in ("valid", "test"):
        raise UserError(f"--split must be valid or test, got {split}")
    corpus = Corpus.open(folder, split)
    files = [folder / f"{split}.{side}.txt" for side in ("target", "source")]
    texts = [[target] for target in corpus.targets_text]
    manifest = read_manifest(folder)
    language = language or manifest.target_language
    return References(
        texts, corpus.sources_text, language, files, source_language=manifest.source_language
    )


def _from_json_lines(path: Path, language: str) -> References:
    sources: list[str] = []
    texts: list[list[str]] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            entry = strict_json.parse(line)
            source, refs = entry["src"], entry["refs"]
        except (ValueError, TypeError, KeyError):
            source, refs = None, []
        is_list = isinstance(refs, list) and len(refs) > 0
        if not is_list or not all(isinstance(text, str) for text in (source, *refs)):
            raise UserError(
                f'{path}, line {number} must be {{"src": "...", "refs": ["...", ...]}}, with one '
                f"reference at least; got {line[:80]!r}"
            )
        sources.append(source)
        texts.append(_without_blanks(refs))
    return References(texts, sources, language, [path])


def _without_blanks(refs: Sequence[str]) -> list[str]:
    """The references that are not blank; one blank reference if all are."""
    return [text for text in refs if text.strip()] or [refs[0]]
