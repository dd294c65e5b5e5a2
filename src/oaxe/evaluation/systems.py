"""The systems that are compared: files of translations, and models that translate now."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oaxe.decoding.translator import Option, Translation, Translator
from oaxe.evaluation.gold import Gold, check_lines
from oaxe.evaluation.repetition import collapsed
from oaxe.support.errors import UserError
from oaxe.text.languages import joined, unit, words
from oaxe.text.lines import read_lines
from oaxe.training.run import load_translator


@dataclass(frozen=True)
class System:
    """The translations of one system, as they came and de-duplicated."""

    name: str
    given: str  # path of the file or the model
    raw: list[str]
    without_repeats: list[str]
    unit: str  # whose repeats were removed: words, characters, subwords
    deduplicates: bool  # what is scored is the latter
    translator: Translator | None = None
    translations: list[Translation] = field(default_factory=list)  # with `raw` as their text

    @property
    def output(self) -> list[str]:
        """What is scored."""
        return self.without_repeats if self.deduplicates else self.raw


def names_and_paths(arguments: Iterable[str]) -> dict[str, str]:
    """``NAME=path`` or just a path, whose last part is then the name; each name once.

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
            raise UserError(f"a system is NAME=path or a path, got {argument!r}")
        if name in found:
            raise UserError(
                f"two systems are called {name}: {found[name]} and {path}; "
                f"give one of them another name, such as {name}2={path}"
            )
        found[name] = path
    return found


def read_system(name: str, path: Path, gold: Gold) -> System:
    """The translations in a text file; blank lines are translations too."""
    raw = read_lines(path)
    check_lines(path, raw, gold.files[0], gold.first)
    without = [joined(collapsed(words(line, gold.language)), gold.language) for line in raw]
    return System(name, str(path), raw, without, unit(gold.language), deduplicates=False)


def load_model(model: str, device: str | None, options: Mapping[str, Option]) -> Translator:
    """A translator that decodes with those of the options that its system has."""
    translator = load_translator(model, device)
    if not translator.system.translates:
        raise UserError(f"--model {model} is a language model, which cannot translate; see --lm")
    mine = {name: value for name, value in options.items() if name in translator.decoding}
    translator.change_decoding(**mine)
    return translator


def translate_system(
    name: str,
    model: str,
    translator: Translator,
    sources: list[str],
    *,
    batch_tokens: int,
    bf16: bool,
) -> System:
    """Translate once; repeats are removed afterwards, as decoding does it."""
    keep_all: dict[str, Option] = {n: False for n in translator.decoding if n == "deduplicate"}
    found = translator.translate_scored(
        sources, batch_tokens=batch_tokens, bf16=bf16, first_line=1, **keep_all
    )
    best = [translations[0] for translations in found]
    without = translator.subwords.decode([collapsed(t.tokens) for t in best])
    return System(
        name,
        model,
        [t.text for t in best],
        without,
        "subwords",
        deduplicates=bool(translator.decoding.get("deduplicate", False)),
        translator=translator,
        translations=best,
    )


def weights_checksum(translator: Translator) -> str:
    """CRC32 of all weights and subwords, wherever they were loaded from."""
    crc = zlib.crc32(translator.subwords.model)
    for tensor in translator.system.state_dict().values():
        crc = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), crc)
    return f"{crc:08x}"
