"""The test set: references, one or more of each sentence, and what they translate."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oaxe.support.errors import UserError
from oaxe.text.corpus import Corpus
from oaxe.text.languages import check_code
from oaxe.text.lines import read_lines, unequal
from oaxe.text.manifest import read_manifest


@dataclass(frozen=True)
class Gold:
    references: list[list[str]]  # of each sentence, one or more; blank only where all are
    sources: list[str] | None  # known if models are to translate them
    language: str  # of the references
    files: list[Path]
    notes: list[str] = field(default_factory=list)  # for the reader of the figures

    def __len__(self) -> int:
        return len(self.references)

    @property
    def first(self) -> list[str]:
        """The first reference of each sentence: the one that lengths and gold figures are of."""
        return [references[0] for references in self.references]

    @property
    def most(self) -> int:
        """References of the sentence that has most of them."""
        return max(map(len, self.references))

    @property
    def fewest(self) -> int:
        return min(map(len, self.references))


def read_gold(
    *,
    references: Sequence[Path] = (),
    multiref: Path | None = None,
    data: Path | None = None,
    split: str = "test",
    source: Path | None = None,
    language: str | None = None,
) -> Gold:
    """Read the references of one of three kinds, and the sources if they are given.

    Args:
        references: text files, line n of each translates sentence n.
        multiref: JSON lines ``{"src": ..., "refs": [...]}``, as many references as there are.
        data: a prepared folder, of which ``split`` is read.
        source: with ``references`` alone: the text that they translate.
        language: of the references; a prepared folder knows its own.

    Raises:
        UserError: none or several of the kinds are given, the language is no code, a file cannot be
            read, is empty, or has another number of lines.
    """
    kinds = {"--ref": references, "--multiref": multiref, "--data": data}
    given = [name for name, value in kinds.items() if value]
    if len(given) != 1:
        raise UserError(
            f"references come from one of {', '.join(kinds)}; got {' and '.join(given) or 'none'}"
        )
    if source is not None and not references:
        raise UserError(f"--source goes with --ref; {given[0]} brings its own sources")
    if language:
        check_code(language)
    if data is not None:
        return _from_folder(data, split, language)
    if multiref is not None:
        return _from_json_lines(multiref, language or "")
    texts = [read_lines(path) for path in references]
    for path, lines in zip(references, texts, strict=True):
        check_lines(path, lines, references[0], texts[0])
    sources = None if source is None else read_lines(source)
    files = [*references]
    if source is not None and sources is not None:
        check_lines(source, sources, references[0], texts[0])
        files.append(source)
    together = [without_blanks(of_sentence) for of_sentence in zip(*texts, strict=True)]
    notes = [
        note
        for path, lines in zip(references, texts, strict=True)
        for note in blank_note(path, [not line.strip() for line in lines])
    ]
    return Gold(together, sources, language or "", files, notes)


def without_blanks(of_sentence: Sequence[str]) -> list[str]:
    """The references of a sentence that say something; a blank one if none does."""
    return [text for text in of_sentence if text.strip()] or [of_sentence[0]]


def blank_note(path: Path | str, are_blank: Sequence[bool], where: str = "") -> list[str]:
    """A note on blank lines, if there are any."""
    count, total = sum(are_blank), len(are_blank)
    verb = "is" if count == 1 else "are"
    return [f"{count:,} of {total:,} lines of {path} {verb} blank{where}"] if count else []


def check_lines(
    path: Path, lines: Sequence[str], reference: Path, of_reference: Sequence[str]
) -> None:
    n, m = len(lines), len(of_reference)
    if n != m:
        rest_is_blank = not any(line.strip() for line in (*lines[m:], *of_reference[n:]))
        advice = (
            "line n of one must belong to line n of the other, and a sentence without translation "
            "to a blank line"
        )
        raise unequal(path, n, reference, m, rest_is_blank, advice)


def _from_folder(folder: Path, split: str, language: str | None) -> Gold:
    if split not in ("valid", "test"):
        raise UserError(f"--split must be valid or test, got {split}")
    corpus = Corpus.open(folder, split)
    files = [folder / f"{split}.{side}.txt" for side in ("source", "target")]
    references = [[target] for target in corpus.targets_text]
    language = language or read_manifest(folder).target_language
    return Gold(references, corpus.sources_text, language, files)


def _from_json_lines(path: Path, language: str) -> Gold:
    sources: list[str] = []
    references: list[list[str]] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            entry = json.loads(line)
            source, of_sentence = entry["src"], entry["refs"]
        except (ValueError, TypeError, KeyError):
            source, of_sentence = None, []
        is_list = isinstance(of_sentence, list) and len(of_sentence) > 0
        if not is_list or not all(isinstance(text, str) for text in (source, *of_sentence)):
            raise UserError(
                f'{path}, line {number} must be {{"src": "...", "refs": ["...", ...]}}, with one '
                f"reference at least; got {line[:80]!r}"
            )
        sources.append(source)
        references.append(without_blanks(of_sentence))
    return Gold(references, sources, language, [path])
