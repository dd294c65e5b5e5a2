"""A trained model in the CPU benchmark: text to text, in a process of its own and without torch.

python -m benchmarks.translators KIND FOLDER OPTIONS: for each line of standard input, batches of
sentences as JSON, it writes all translations and the seconds of each batch.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from oaxe.decoding.translator import Translator

Translate = Callable[[list[str]], list[str]]


def engine(folder: Path, workers: int, threads: int, **how: Any) -> Translate:
    assert workers == 1
    return partial(Translator.from_pretrained(folder, threads=threads).translate, **how)


def ctranslate2(folder: Path, **how: Any) -> Translate:
    from oaxe.engine.ctranslate import Search

    return Search(folder, **how).translate


MAKERS: dict[str, Callable[..., Translate]] = {"engine": engine, "ctranslate2": ctranslate2}


def main(kind: str, folder: str, options: str) -> None:
    translate = MAKERS[kind](Path(folder), **json.loads(options))
    for line in sys.stdin:
        texts: list[str] = []
        seconds: list[float] = []
        for batch in json.loads(line):
            start = perf_counter()
            texts += translate(batch)
            seconds.append(perf_counter() - start)
        print(json.dumps({"texts": texts, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
