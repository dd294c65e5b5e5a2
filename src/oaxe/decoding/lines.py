"""Lines in, lines out: `oaxe translate` of files, of pipes and at a terminal."""

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

from oaxe.decoding.translator import Option, Translation, Translator
from oaxe.support.errors import UserError
from oaxe.support.files import appears_whole, check_output
from oaxe.text.guess import warn_of_target
from oaxe.text.lines import Lines
from oaxe.text.sentences import Paragraph, split_paragraph

if TYPE_CHECKING:
    from rich.console import Console

CHUNK = 10_000  # lines that are sorted by length together
FILE_NAME = re.compile(r"\S*[/\\]\S*|\S+\.\w{1,5}")  # no sentence
MOMENT = 0.05  # seconds that a line waits for others


@contextmanager
def until_readers_leave() -> Iterator[None]:
    """A closed pipe, as after `oaxe translate | head`, is no failure."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@until_readers_leave()
def translate_file(
    translator: Translator,
    source: Path | str | None,
    output: Path | None,
    *,
    as_json: bool,
    paragraphs: bool = False,
    batch_tokens: int,
    bf16: bool,
    **options: Option,
) -> None:
    """Translate a file, a text, or standard input, line by line.

    A path is a file, a string the text itself, and ``None`` is standard input or output.
    Where lines come slowly, from a person or a pipe, each is answered soon.
    An output file appears when it is complete; until then it is called ``NAME.NUMBER.part``.
    Lines are one sentence each, or ``paragraphs`` of any number of sentences, as in a text.
    """
    translator.decoding_with(**options)  # before anything is opened
    paragraphs = paragraphs or isinstance(source, str)
    check_output(output, source if isinstance(source, Path) else None)
    with ExitStack() as stack:
        given = stack.enter_context(_lines(source))
        out: IO[bytes] = sys.stdout.buffer
        if output is not None:
            out = stack.enter_context(appears_whole(output, alone=False))
        first_line, language = 1, translator.languages[1]
        for chunk in _chunks(given, _shown(given, output)):
            if first_line == 1:
                warn_of_target(chunk, translator.languages, given.path)
            numbers = range(first_line, first_line + len(chunk))
            parts = [split_paragraph(t) if paragraphs else Paragraph([t], ["", ""]) for t in chunk]
            found = translator.translate_scored(
                [sentence for part in parts for sentence in part.sentences],
                batch_tokens=batch_tokens,
                bf16=bf16,
                first_line=[n for n, p in zip(numbers, parts, strict=True) for _ in p.sentences],
                most=None if as_json else 1,
                **options,
            )
            first_line += len(chunk)
            every = iter(found)
            for text, part in zip(chunk, parts, strict=True):
                of_line = [next(every) for _ in part.sentences]
                if not as_json:
                    line = part.filled([best.text for best, *_ in of_line], language)
                elif paragraphs:
                    line = _json_paragraph(text, part, of_line, language)
                else:
                    line = json.dumps(_record(text, of_line[0]), ensure_ascii=False)
                out.write(f"{line}\n".encode())
            out.flush()


def find_source(given: str | None) -> Path | str | None:
    """A file, if there is one of that name, or else text; UserError for a file that is missing.

    Example:
        >>> find_source(__file__).name, find_source("How are you?"), find_source(None)
        ('lines.py', 'How are you?', None)
    """
    if given is None:
        return None
    is_folder = os.path.isdir(given)
    if os.path.exists(given) and not is_folder:  # a pipe, too, such as <(command)
        return Path(given)
    if is_folder or FILE_NAME.fullmatch(given):
        found = "is a folder" if is_folder else "looks like a file, and there is none"
        raise UserError(
            f"{given} {found}; give a file of one sentence a line. To translate this very word, "
            f"pipe it in: echo '{given}' | oaxe translate"
        )
    return given


def _lines(source: Path | str | None) -> Lines:
    if source is None:
        return Lines(Path("standard input"), sys.stdin.buffer)
    if isinstance(source, Path):
        return Lines(source)
    return Lines(Path("the text"), BytesIO(os.fsencode(source)))


def talk(
    translator: Translator, console: "Console", *, paragraphs: bool = False, **options: Option
) -> None:
    """Translate what is typed, a line at a time, until Ctrl-D."""
    source, target = translator.languages
    console.print(
        f"Type {source or 'a sentence'}, read {target or 'its translation'}; Ctrl-D ends."
    )
    while True:
        try:
            line = console.input("> ")
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        translate = translator.translate_paragraphs if paragraphs else translator.translate
        console.print(translate([line], **options)[0])  # type: ignore[arg-type]


def _chunks(given: Lines, lines: Iterable[str]) -> Iterator[list[str]]:
    """As many lines as are there together: all, of a file, up to CHUNK."""
    chunk, until = list[str](), 0.0
    for line in lines:
        until = until if chunk else time.monotonic() + MOMENT
        chunk.append(line)
        if len(chunk) == CHUNK or not given.comes_within(max(0.0, until - time.monotonic())):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _shown(lines: Lines, output: Path | None) -> Iterable[str]:
    """With a progress line on standard error, if the translations go elsewhere."""
    every = iter(lines.read, None)
    if output is None:
        return every
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(every, "translating", total=None, console=console, disable=not console.is_terminal)


def _record(text: str, translations: list[Translation]) -> dict[str, object]:
    found = [{"text": t.text, "score": round(t.score, 6), "length": t.length} for t in translations]
    return {"source": text, "translations": found}


def _json_paragraph(
    text: str, part: Paragraph, found: list[list[Translation]], language: str
) -> str:
    best = part.filled([translations[0].text for translations in found], language)
    sentences = list(map(_record, part.sentences, found))
    record = {"source": text, "translation": best, "sentences": sentences}
    return json.dumps(record, ensure_ascii=False)
