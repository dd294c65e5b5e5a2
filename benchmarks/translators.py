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
from oaxe.text.subwords import Subwords

Translate = Callable[[list[str]], list[str]]


def engine(folder: Path, workers: int, threads: int, **how: Any) -> Translate:
    assert workers == 1
    return partial(Translator.from_pretrained(folder, threads=threads).translate, **how)


def ctranslate2(
    folder: Path, workers: int, threads: int, max_length: int, max_ratio: float, **how: Any
) -> Translate:
    """``workers`` share the sentences of a batch; the limits of length are those of our search."""
    import ctranslate2

    model = ctranslate2.Translator(str(folder), inter_threads=workers, intra_threads=threads)
    subwords = Subwords.load(folder / "subwords.model")
    pieces = [subwords.piece(i) for i in range(subwords.vocab_size)]
    number = {piece: i for i, piece in enumerate(pieces)}

    def translate(lines: list[str]) -> list[str]:
        rows = [row[:max_length] for row in subwords.encode([line.strip() for line in lines])]
        longest = max(map(len, rows)) + 1  # with EOS
        found = model.translate_batch(
            [[pieces[i] for i in row] for row in rows],
            max_batch_size=-(-len(rows) // workers),
            max_decoding_length=min(int(max_ratio * longest) + 10, max_length),
            **how,
        )
        best = [[number[piece] for piece in result.hypotheses[0]] for result in found]
        return subwords.decode(best)

    return translate


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
