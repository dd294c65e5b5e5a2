"""Lines in, lines out: what `oaxe translate` does with files, pipes and people."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from oaxe.decoding.pretrained import RUN
from oaxe.decoding.translator import Option, Translation, Translator, changed_options
from oaxe.errors import UserError

CHUNK = 10_000  # lines that are sorted by length together


def load_translator(model: str, device: str | None) -> Translator:
    """A run, one of its checkpoints, a model folder, its weights, or a name on the hub.

    On the GPU, if there is one.
    """
    device = usable_device(device)
    path = Path(model)
    folder = (path.parent if path.is_file() else path).absolute()
    if (folder.parent.parent / RUN).is_file() and folder.name.startswith("step-"):
        from oaxe.training.run import translator_at

        return translator_at(folder, device)
    return Translator.from_pretrained(folder if path.is_file() else model, device=device)


def usable_device(device: str | None) -> str:
    """The device that was asked for, else a GPU if there is one; UserError if it cannot be used."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {device} cannot be used here: {error}") from None
    # cuDNN's attention plans anew, for half a second, at every new batch shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


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

    An output file appears when it is complete; until then it is called ``NAME.part``.
    """
    changed_options(translator.kind, translator.decoding, options)  # before anything is opened
    part = None if output is None else output.with_name(output.name + ".part")
    with ExitStack() as stack:
        try:
            given = sys.stdin.buffer if source is None else stack.enter_context(source.open("rb"))
            out = sys.stdout
            if part is not None:
                out = stack.enter_context(part.open("w", encoding="utf-8", newline="\n"))
        except OSError as error:
            raise UserError(f"cannot open {error.filename}: {error.strerror}") from None
        first_line = 1
        for chunk in _chunks(_shown(given, output)):
            found = translator.translate_scored(
                chunk, batch_tokens=batch_tokens, bf16=bf16, first_line=first_line, **options
            )
            first_line += len(chunk)
            for text, translations in zip(chunk, found, strict=True):
                print(_json(text, translations) if as_json else translations[0].text, file=out)
            out.flush()
    if part is not None and output is not None:
        part.replace(output)


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


def _shown(lines: Iterable[bytes], output: Path | None) -> Iterable[bytes]:
    """With a progress line on standard error, if the translations go elsewhere."""
    if output is None:
        return lines
    console = Console(stderr=True)
    return track(lines, "translating", total=None, console=console, disable=not console.is_terminal)


def _chunks(lines: Iterable[bytes]) -> Iterator[list[str]]:
    """Lines end at a line feed and nowhere else: as many come out as went in."""
    numbered = enumerate(lines, 1)
    while chunk := list(islice(numbered, CHUNK)):
        yield [_text(line, number) for number, line in chunk]


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(f"line {number} of the input is not UTF-8: {error}; convert it") from None


def _json(text: str, translations: list[Translation]) -> str:
    found = [{"text": t.text, "score": round(t.score, 6), "length": t.length} for t in translations]
    return json.dumps({"source": text, "translations": found}, ensure_ascii=False)
