"""Lines in, lines out: what `oaxe translate` does with files, pipes and people."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track

from oaxe.decoding.translator import Option, Translation, Translator
from oaxe.support.files import appears_whole, check_output
from oaxe.text.lines import Lines

CHUNK = 10_000  # lines that are sorted by length together
MOMENT = 0.05  # seconds that a line waits for others


@contextmanager
def until_readers_leave() -> Iterator[None]:
    """`oaxe translate | head` is no failure: the reader has what it wanted."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@until_readers_leave()
def translate_file(
    translator: Translator,
    source: Path | None,
    output: Path | None,
    *,
    as_json: bool,
    batch_tokens: int,
    bf16: bool,
    **options: Option,
) -> None:
    """Translate a file, or standard input, line by line; ``None`` is standard input or output.

    Where lines come slowly, from a person or a pipe, each is answered soon.
    An output file appears when it is complete; until then it is called ``NAME.part``.
    """
    translator.decoding_with(**options)  # before anything is opened
    check_output(output, source)
    with ExitStack() as stack:
        given = Lines(Path("standard input"), sys.stdin.buffer) if source is None else Lines(source)
        stack.enter_context(given)
        out = sys.stdout.buffer if output is None else stack.enter_context(appears_whole(output))
        first_line = 1
        for chunk in _chunks(given, _shown(given, output)):
            found = translator.translate_scored(
                chunk, batch_tokens=batch_tokens, bf16=bf16, first_line=first_line, **options
            )
            first_line += len(chunk)
            for text, translations in zip(chunk, found, strict=True):
                line = _json(text, translations) if as_json else translations[0].text
                out.write(f"{line}\n".encode())
            out.flush()


def talk(translator: Translator, console: Console, **options: Option) -> None:
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
        found = translator.translate_scored([line], **options)  # type: ignore[arg-type]
        console.print(found[0][0].text, highlight=False, markup=False)


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
    console = Console(stderr=True)
    return track(every, "translating", total=None, console=console, disable=not console.is_terminal)


def _json(text: str, translations: list[Translation]) -> str:
    found = [{"text": t.text, "score": round(t.score, 6), "length": t.length} for t in translations]
    return json.dumps({"source": text, "translations": found}, ensure_ascii=False)
