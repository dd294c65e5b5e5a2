"""CPU: the engine of exported models against CTranslate2, in int8 and with random weights.

Every contender is a process of its own; they take turns in random order. Every sentence and every
translation has the same number of tokens. CTranslate2, with threads that share a batch and with
workers that split it, is optional: pip install "oaxe[ctranslate2]".
"""

import json as jsons
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.harness import JsonPath, Repeats, Report, Seed, Size, Vocab, relative_time
from oaxe.decoding.box import BOX
from oaxe.engine import export
from oaxe.engine.engine import available_threads
from oaxe.engine.output import paths
from oaxe.model.transformer import SIZES
from oaxe.support.errors import UserError
from oaxe.systems import build, cmlm, ctc, dag, transformer
from oaxe.text.corpus import Sentences
from oaxe.text.manifest import SUBWORDS
from oaxe.text.ngram_files import save_ngrams
from oaxe.text.ngrams import estimate
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import EOS, LENGTH, SYMBOLS

WAITING = "OMP_WAIT_POLICY"
BASELINE = "CTranslate2 12-1, greedy"  # with threads or with workers, whichever is faster
OPTIONS = {"cmlm": cmlm.Options(), "ctc": ctc.Options(), "dag": dag.Options()}
NGRAMS = "ngrams"
ENGINE: dict[str, tuple[str, dict[str, Any]]] = {  # systems and their decoding
    "1 length": ("cmlm", {"length_candidates": 1}),
    "5 lengths": ("cmlm", {"length_candidates": 5}),
    "CTC": ("ctc", {}),
    "DAG": ("dag", {}),
    "DAG, beam 5": ("dag", {"method": "beam", "beam": 5}),
    "DAG, beam 20": ("dag", {"method": "beam", "beam": 20}),
    "DAG, beam 5, n-grams": ("dag", {"method": "beam", "beam": 5, "lm": NGRAMS}),
    "DAG, beam 20, n-grams": ("dag", {"method": "beam", "beam": 20, "lm": NGRAMS}),
}


def cpu(
    size: Size = "base",
    vocab: Vocab = 32_000,
    length: Annotated[int, typer.Option(min=11, help="Tokens of source and target.")] = 27,
    batches: Annotated[str, typer.Option(help="Numbers of sentences at once.")] = "1,16,64",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each. Default: as many as cores.")
    ] = None,
    only: Annotated[str, typer.Option(help="Contenders whose names have this in them.")] = "",
    repeats: Repeats = 10,
    seed: Seed = 0,
    json: JsonPath = None,
) -> None:
    """CPU: exported one-pass models in int8 against CTranslate2."""
    if size not in SIZES:
        raise UserError(f"--size must be one of {', '.join(SIZES)}, got {size}")
    threads = threads or available_threads()
    about = {"size": size, "vocab": vocab, "length": length, "threads": threads, "seed": seed}
    report = Report(json, output=paths()[0], **about)
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        makers = contenders(folder, size, vocab, length, only)
        ask = {
            name: stack.enter_context(
                process(f"{kind} of ids", path, {"threads": threads, "length": length, **how})
            )
            for name, (kind, path, how) in makers.items()
        }
        for sentences in map(int, batches.split(",")):
            words = rng.integers(LENGTH + 1, vocab, (sentences, length))
            words[:, -1] = EOS
            runs = {name: partial(run, [words.tolist()]) for name, run in ask.items()}
            title = f"{sentences} at once"
            timings = report.measure(runs, repeats, title, clock=_own_clock)
            rate = {name: sentences / timing.median for name, timing in timings.items()}
            baselines = [name for name in rate if name.startswith(BASELINE)]
            best = max(baselines, key=lambda name: rate[name], default="")
            columns = {"sentences/s": rate, f"time / {BASELINE}": relative_time(timings, best)}
            report.add(title, timings, {name: column for name, column in columns.items() if column})


def _own_clock(run: Callable[[], object]) -> float:
    """A contender measures its own time: sending a batch to its process is not part of it."""
    answer = run()
    assert isinstance(answer, dict)
    return float(*answer["seconds"])


Maker = tuple[str, Path, dict[str, Any]]  # kind, folder, options


def contenders(folder: Path, size: str, vocab: int, length: int, only: str) -> dict[str, Maker]:
    """Write the models; how each of them is to be used."""
    found: dict[str, Maker] = {}
    for kind in dict.fromkeys((size, "12-1")):
        for search, (system, how) in ENGINE.items():
            name, path = f"engine {kind}, {search}", folder / f"{system}-{kind}"
            if only not in name:
                continue
            if not path.exists():
                write_engine(path, system, OPTIONS[system], kind, vocab, length)
            if "lm" in how:
                how = how | {"lm": str(ngrams(folder, vocab, length))}
            found[name] = ("engine", path, how)
        if find_spec("ctranslate2") is not None and only in f"CTranslate2 {kind}":
            path = folder / f"ct2-{kind}"
            write_ctranslate(path, kind, vocab, length)
            for search, beam in (("greedy", 1), ("beam 5", 5)):
                for share in ("threads", "workers"):
                    made_by = "ctranslate2", path, {"beam_size": beam, "share": share}
                    found[f"CTranslate2 {kind}, {search}, {share}"] = made_by
    return found


def weights_of(
    system: str, options: Any, size: str, vocab: int, length: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a new model, and its description."""
    architecture = {"vocab_size": vocab, **SIZES[size], "max_length": 2 * length}
    model = build(system, architecture, options)
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    return weights, model.description()


def write_engine(
    folder: Path, system: str, options: Any, size: str, vocab: int, length: int
) -> None:
    weights, config = weights_of(system, options, size, vocab, length)
    if system == "cmlm":  # the right length is the likeliest, its neighbours follow
        distance = np.abs(np.arange(2 * length + 1) - (length - 1))
        weights["length.output.bias"] = (-10.0 * distance).astype(np.float32)
    no_text = Subwords.load(BOX / SUBWORDS)  # of another vocabulary; nothing reads them here
    export.export(folder, weights, {**config, "decoding": {}}, no_text, int8=True)


def ngrams(folder: Path, vocab: int, length: int, sentences: int = 10_000) -> Path:
    """Of random text, whose words are as unequal as those of a language."""
    if (folder / NGRAMS).exists():
        return folder / NGRAMS
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, vocab - LENGTH)
    words = LENGTH + 1 + rng.choice(len(share), sentences * length, p=share / share.sum())
    text = Sentences(words, length * np.arange(sentences + 1))
    save_ngrams(folder / NGRAMS, estimate(text, vocab, order=4), Subwords.load(BOX / SUBWORDS))
    return folder / NGRAMS


def write_ctranslate(folder: Path, size: str, vocab: int, length: int) -> None:
    from oaxe.engine import ctranslate

    weights, config = weights_of("transformer", transformer.Options(), size, vocab, length)
    pieces = [*SYMBOLS, *(f"w{i}" for i in range(len(SYMBOLS), vocab))]
    ctranslate.export(folder, weights, config, b"", pieces, int8=True)


@contextmanager
def process(
    kind: str, folder: Path, how: dict[str, Any], waiting: str | None = None
) -> Iterator[Callable[[Any], Any]]:
    """A process that is sent batches and answers, see :mod:`benchmarks.contender`.

    Our own commands set a policy of waiting, which CTranslate2 need not share; ``waiting`` is one.
    """
    environment = {name: value for name, value in os.environ.items() if name != WAITING}
    environment |= {WAITING: waiting} if waiting else {}
    command = [sys.executable, "-m", "benchmarks.contender", kind, str(folder), jsons.dumps(how)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        to, of = worker.stdin, worker.stdout

        def ask(question: Any) -> Any:
            print(jsons.dumps(question), file=to, flush=True)
            return jsons.loads(of.readline())

        yield ask
        to.close()
