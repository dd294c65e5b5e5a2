"""The outputs that are compared: files of translations, and translations of models."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from oaxe.decoding.translator import Translation, Translator
from oaxe.evaluation.references import References, check_lines
from oaxe.evaluation.repetition import collapsed
from oaxe.support.errors import UserError
from oaxe.text.languages import joined, unit, words
from oaxe.text.lines import read_lines


@dataclass(frozen=True)
class Output:
    """One output of the test set, before and after de-duplication."""

    name: str
    given: str  # path of the file or of the model
    raw: list[str]
    without_repeats: list[str]
    unit: str  # of de-duplication: words, characters, subwords
    deduplicates: bool  # True if without_repeats is scored
    translator: Translator | None = None
    translations: list[Translation] = field(default_factory=list)  # their texts are `raw`

    @property
    def scored(self) -> list[str]:
        return self.without_repeats if self.deduplicates else self.raw


def names_and_paths(arguments: Iterable[str]) -> dict[str, str]:
    """``NAME=path``, or a path whose last part is the name. Names must differ.

    Example:
        >>> names_and_paths(["XE=runs/1", "runs/oaxe/"])
        {'XE': 'runs/1', 'oaxe': 'runs/oaxe/'}
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or "/" in name or Path(argument).exists():
            path = argument
            name = Path(path).stem if Path(path).is_file() else Path(path).name
        if not name or not path:
            raise UserError(f"give NAME=path or a path, got {argument!r}")
        if name in found:
            raise UserError(
                f"two outputs are called {name}: {found[name]} and {path}; "
                f"give one of them another name, such as {name}2={path}"
            )
        found[name] = path
    return found


def read_output(name: str, path: Path, references: References) -> Output:
    """The translations in a text file. Blank lines count."""
    raw, language = read_lines(path), references.language
    check_lines(path, raw, references.files[0], references.first)
    without = [joined(collapsed(words(line, language)), language) for line in raw]
    return Output(name, str(path), raw, without, unit(language), deduplicates=False)
