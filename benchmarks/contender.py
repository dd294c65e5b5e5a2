"""A contender of the CPU benchmarks, in a process of its own and without torch.

python -m benchmarks.contender KIND FOLDER OPTIONS: for each line of input, batches as JSON,
it writes the seconds of each batch, and the translations where these are text. A batch is sentences
or, for the kinds of token ids, rows of ids, which need no vocabulary.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

Rows = list[list[int]]


def engine(folder: Path, workers: int, threads: int, **how: Any) -> Callable[[list[str]], Any]:
    from oaxe.decoding.translator import Translator

    assert workers == 1
    translator = Translator.from_pretrained(folder, threads=threads)
    return lambda lines: translator.translate(lines, **how)


def ctranslate2(folder: Path, **how: Any) -> Callable[[list[str]], Any]:
    from oaxe.engine.ctranslate import Search

    return Search(folder, **how).translate


def engine_of_ids(folder: Path, threads: int, length: int, **how: Any) -> Callable[[Rows], Any]:
    from oaxe.engine.engine import Engine

    model = Engine(folder, json.loads((folder / "config.json").read_text()), threads)
    decoding = model.decoding_type(**how)

    def translate(rows: Rows) -> None:
        model.translate(rows, decoding)

    return translate


def ctranslate2_of_ids(
    folder: Path, threads: int, length: int, share: str, **how: Any
) -> Callable[[Rows], Any]:
    import ctranslate2

    workers = threads if share == "workers" else 1
    model = ctranslate2.Translator(
        str(folder), intra_threads=threads // workers, inter_threads=workers
    )
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    bounds = {"min_decoding_length": length - 1, "max_decoding_length": length - 1}

    def translate(rows: Rows) -> None:
        source = [[tokens[i] for i in row[:-1]] for row in rows]  # it adds EOS by itself
        at_once = -(-len(rows) // workers)
        model.translate_batch(source, max_batch_size=at_once, **how, **bounds)

    return translate


MAKERS: dict[str, Callable[..., Callable[[Any], Any]]] = {
    "engine": engine,
    "ctranslate2": ctranslate2,
    "engine of ids": engine_of_ids,
    "ctranslate2 of ids": ctranslate2_of_ids,
}


def main(kind: str, folder: str, options: str) -> None:
    translate = MAKERS[kind](Path(folder), **json.loads(options))
    for line in sys.stdin:
        texts: list[str] = []
        seconds: list[float] = []
        for batch in json.loads(line):
            start = perf_counter()
            found = translate(batch)
            seconds.append(perf_counter() - start)
            texts += found or []
        print(json.dumps({"texts": texts, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
