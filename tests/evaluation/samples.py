"""Texts with known errors, plain versions of the scores, random models, `oaxe evaluate`."""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from oaxe.commands.app import app
from oaxe.decoding.translator import Translator
from oaxe.evaluation.references import References
from oaxe.text.subwords import Subwords
from tests.cli import printed
from tests.models import micro

run = partial(printed, app, "evaluate")
VOCABULARY = "the a dog cat boat runs sleeps over under green red field water and then"
WORDS = VOCABULARY.split()
SOURCES = [
    "a small dog runs over the green field",
    "two men",
    "",
    "the children play in the water near a big red boat while it rains",
    "a woman reads",
    "the dog sleeps in the old boat",
]


def sentences(seed: int, count: int, shortest: int = 5, longest: int = 14) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(shortest, longest))) for _ in range(count)]


def near(lines: Sequence[str], seed: int, errors: float = 0.2) -> list[str]:
    """The lines with some words exchanged and some repeated."""
    rng = random.Random(seed)
    found = []
    for line in lines:
        words = [rng.choice(WORDS) if rng.random() < errors else w for w in line.split()]
        found.append(" ".join(w for word in words for w in [word] * rng.choice((1, 1, 1, 2))))
    return found


def references_of(texts: list[list[str]], language: str = "en") -> References:
    return References(texts, None, language, [Path("ref.txt")])


def plain_bleu(output: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Papineni et al. (2002), by counting; for texts where every n-gram order has a match."""
    right, total, own_length, ref_length = [0] * 4, [0] * 4, 0, 0
    for line, refs in zip(output, references, strict=True):
        words = line.split()
        own_length += len(words)
        lengths = [len(ref.split()) for ref in refs]
        ref_length += min(lengths, key=lambda n: (abs(n - len(words)), n))
        for n in range(1, 5):
            grams = ngrams(words, n)
            most: Counter[tuple[str, ...]] = Counter()
            for ref in refs:
                most |= ngrams(ref.split(), n)
            right[n - 1] += (grams & most).total()
            total[n - 1] += grams.total()
    brevity = min(1.0, math.exp(1 - ref_length / own_length))
    mean = sum(math.log(r / t) for r, t in zip(right, total, strict=True)) / 4
    return 100 * brevity * math.exp(mean)


def ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def plain_chrf(output: Sequence[str], references: Sequence[str]) -> float:
    """Popovic (2015): F2 of the mean precision and the mean recall of character n-grams."""
    precision = recall = 0.0
    for n in range(1, 7):
        right = own = wanted = 0
        for line, ref in zip(output, references, strict=True):
            a, b = (ngrams(text.replace(" ", ""), n) for text in (line, ref))
            right, own, wanted = right + (a & b).total(), own + a.total(), wanted + b.total()
        precision, recall = precision + right / own / 6, recall + right / wanted / 6
    return 100 * 5 * precision * recall / (4 * precision + recall)


def run_models(folder: Path, *arguments: str | Path) -> str:
    """`oaxe evaluate` on the test set of the folder of models."""
    given = "--source", folder / "source.txt", "--ref", folder / "reference.txt"
    return run(*given, *arguments, "--device", "cpu")


def translator(subwords: Subwords, system: str, max_length: int = 40) -> Translator:
    model = micro(system, "pre", vocab_size=subwords.vocab_size, max_length=max_length)
    return Translator(model, subwords, languages=("en", "en"))


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
