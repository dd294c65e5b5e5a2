"""A contender of the CPU benchmark, in a process of its own and without torch.

python -m benchmarks.engines KIND FOLDER THREADS LENGTH OPTIONS: for each line of standard input, a
batch of token ids as JSON, it writes how many seconds the translation took.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from oaxe.support.timing import wall_clock

Rows = list[list[int]]


def engine(folder: Path, threads: int, length: int, **how: Any) -> Callable[[Rows], object]:
    from oaxe.engine.engine import Engine

    model = Engine(folder, json.loads((folder / "config.json").read_text()), threads)
    return partial(model.translate, decoding=model.decoding_type(**how))


def ctranslate2(
    folder: Path, threads: int, length: int, share: str, **how: Any
) -> Callable[[Rows], object]:
    import ctranslate2

    workers = threads if share == "workers" else 1
    model = ctranslate2.Translator(
        str(folder), intra_threads=threads // workers, inter_threads=workers
    )
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    bounds = {"min_decoding_length": length - 1, "max_decoding_length": length - 1}

    def translate(rows: Rows) -> object:
        source = [[tokens[i] for i in row[:-1]] for row in rows]  # it adds EOS by itself
        at_once = -(-len(rows) // workers)
        return model.translate_batch(source, max_batch_size=at_once, **how, **bounds)

    return translate


MAKERS: dict[str, Callable[..., Callable[[Rows], object]]] = {
    "engine": engine,
    "ctranslate2": ctranslate2,
}


def main(kind: str, folder: str, threads: str, length: str, options: str) -> None:
    translate = MAKERS[kind](Path(folder), int(threads), int(length), **json.loads(options))
    for line in sys.stdin:
        print(wall_clock(partial(translate, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
