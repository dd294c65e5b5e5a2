"""Lines in, lines out: what `oaxe translate` does with files, pipes and people."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch
from rich.console import Console
from rich.progress import track

from oaxe.decoding.translator import Option, Translation, Translator
from oaxe.errors import UserError

CHUNK = 10_000  # lines that are sorted by length together


def load_translator(model: Path | str, device: str | None) -> Translator:
    """A run folder, a model folder or a name on the hub, on the GPU if there is one."""
    finished = Path(model) / "model"
    if (Path(model) / "config.yaml").exists() and not finished.is_dir():
        raise UserError(f"the run {model} is not finished: it has no folder `model` yet")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Translator.from_pretrained(finished if finished.is_dir() else model, device=device)


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
    """Translate a file, or standard input, line by line; ``None`` is standard input or output."""
    with ExitStack() as stack:
        try:
            lines: TextIO = (
                sys.stdin if source is None else stack.enter_context(source.open(encoding="utf-8"))
            )
            out = (
                sys.stdout
                if output is None
                else stack.enter_context(output.open("w", encoding="utf-8"))
            )
        except OSError as error:
            raise UserError(f"cannot open {error.filename}: {error.strerror}") from None
        first_line = 1
        for chunk in _chunks(_shown(lines, output)):
            found = translator.translate_scored(
                chunk, batch_tokens=batch_tokens, bf16=bf16, first_line=first_line, **options
            )
            first_line += len(chunk)
            for text, translations in zip(chunk, found, strict=True):
                if as_json:
                    print(_json(text, translations), file=out)
                else:
                    print(translations[0].text, file=out)
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


def _shown(lines: Iterable[str], output: Path | None) -> Iterable[str]:
    """With a progress line on standard error, if the translations go elsewhere."""
    if output is None:
        return lines
    console = Console(stderr=True)
    return track(lines, "translating", total=None, console=console, disable=not console.is_terminal)


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    texts = (line.rstrip("\n") for line in lines)
    try:
        while chunk := list(islice(texts, CHUNK)):
            yield chunk
    except UnicodeDecodeError as error:
        raise UserError(f"the input is not UTF-8: {error}; convert it first") from None


def _json(text: str, translations: list[Translation]) -> str:
    found = [{"text": t.text, "score": round(t.score, 6), "length": t.length} for t in translations]
    return json.dumps({"source": text, "translations": found}, ensure_ascii=False)
