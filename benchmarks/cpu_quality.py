"""CPU: BLEU and speed of trained models in int8: our engine, CTranslate2 for autoregressive ones.

Every contender is a process of its own, text to text; they take turns in random order. CTranslate2
may be several: workers that share a batch, or threads that share a sentence. The best counts.
"""

import json as jsons
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from benchmarks.cpu import process
from benchmarks.harness import JsonPath, Repeats, Report
from oaxe.decoding.exported import LENGTH_SHARE, export
from oaxe.decoding.saved import is_exported
from oaxe.engine.engine import DECODINGS, available_threads
from oaxe.engine.output import paths
from oaxe.evaluation.bleu import bleu
from oaxe.evaluation.outputs import names_and_paths
from oaxe.evaluation.references import read_references
from oaxe.search.options import LengthDecoding
from oaxe.support.config import build
from oaxe.support.console import new_console
from oaxe.support.files import check_output
from oaxe.support.timing import Timing
from oaxe.training.exporting import choose_cpu_decoding
from oaxe.training.run import load_translator

MODULES = ("onnxruntime", "ctranslate2")
MODELS, RESULTS, ALONE = "models", "results", "one sentence, ms"
BEAMS = {"greedy": 1, "beam 5": 5}
Batches = list[list[str]]


class Exported(NamedTuple):
    kind: str  # engine, ctranslate2
    folder: Path
    system: str
    architecture: Mapping[str, Any]
    decoding: Any


class Contender(NamedTuple):
    model: str
    search: str  # empty: the only one of the model
    workers: int
    threads: int  # of each worker
    exported: Exported
    how: dict[str, Any]

    @property
    def row(self) -> str:
        return f"{self.model}, {self.search}" if self.search else self.model

    @property
    def threading(self) -> str:
        return f"{self.workers} x {self.threads}"


def cpu_quality(
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Prepared folder with a test set.", exists=True)
    ],
    model: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]MODEL", help="A run, or a saved model. Can be repeated."),
    ],
    batches: Annotated[str, typer.Option(help="Sentences at once, beside one.")] = "16,64",
    sentences: Annotated[
        int, typer.Option(min=1, help="How many, spread over the test set, are timed one by one.")
    ] = 100,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each. Default: as many as cores.")
    ] = None,
    waiting: Annotated[
        str | None,
        typer.Option(
            help="OMP_WAIT_POLICY of all, such as passive on a busy machine. Default: not set, "
            "which is best for CTranslate2."
        ),
    ] = None,
    repeats: Repeats = 3,
    json: JsonPath = None,
) -> None:
    """CPU: BLEU and speed of trained models in int8, with CTranslate2 for autoregressive ones."""
    check_output(json)
    references = read_references(data=data)
    lines = references.sources or []
    given = names_and_paths(model)
    threads = threads or available_threads()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = {name: exported(path, folder / name) for name, path in given.items()}
        contenders = {
            f"{found.row}, {found.threading}": found
            for name, model_in_int8 in models.items()
            for found in contenders_of(name, model_in_int8, threads)
        }
        report = Report(
            json,
            threads=threads,
            data=data.resolve().name,
            languages=[references.source_language, references.language],
            sentences=len(lines),
            timed_alone=min(sentences, len(lines)),
            rounds=repeats,
            output=paths()[0],
            waiting=waiting or "by default",
            **{name: version(name) for name in MODULES if find_spec(name)},
        )
        report.add(
            MODELS, {}, by_column({name: described(found) for name, found in models.items()})
        )
        ask = {
            name: stack.enter_context(started(contender, waiting))
            for name, contender in contenders.items()
        }
        texts: dict[str, list[str]] = {}

        def run(name: str, parts: Batches) -> list[float]:
            answer = ask[name](parts)
            texts[name] = answer["texts"]
            return list(answer["seconds"])

        scores: dict[int, dict[str, float]] = {}
        timings: dict[int, dict[str, Timing]] = {}
        for n in (1, *map(int, batches.split(","))):
            title, parts = f"{n} at once", [lines[i : i + n] for i in range(0, len(lines), n)]
            timed = spread(parts, sentences) if n == 1 else parts
            runs = {name: partial(run, name, timed) for name in contenders}
            timings[n] = report.measure(runs, repeats, title, clock=partial(_clock, n))
            if timed is not parts:  # BLEU is of all sentences
                for name in contenders:
                    run(name, parts)
            scores[n] = {name: bleu(references, found)["score"] for name, found in texts.items()}
            report.add(title, timings[n], {"BLEU": scores[n]})
        report.add(RESULTS, {}, by_column(best(contenders, scores, timings, len(lines))))


def exported(path: str, folder: Path) -> Exported:
    """A model in int8, as `oaxe export --int8` writes it; one that is exported already is taken."""
    if not is_exported(path):
        translator = load_translator(path, "cpu")
        system = translator.system
        if system.name == "transformer":
            export(translator, folder, int8=True, format="ctranslate2")
            how = translator.decoding_with()
            return Exported("ctranslate2", folder, system.name, system.architecture, how)
        chosen = choose_cpu_decoding(translator, path, new_console())
        export(translator, folder, int8=True, length_share=0.0 if chosen else LENGTH_SHARE)
        path = str(folder)
    config = jsons.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    name = config["system"]
    how = build(DECODINGS[name], config["decoding"], f"decoding with {name}")
    return Exported("engine", Path(path), name, config["architecture"], how)


def contenders_of(name: str, model: Exported, threads: int) -> Iterator[Contender]:
    """All ways to search with a model, each with every way to use the threads."""
    workers, searches = [1], one_pass(model.decoding)
    if model.kind == "ctranslate2":
        workers = sorted({1, threads})
        same = {key: getattr(model.decoding, key) for key in ("length_penalty", "max_ratio")}
        same["max_length"] = model.architecture["max_length"]
        searches = {search: {"beam_size": beam, **same} for search, beam in BEAMS.items()}
    for search, how in searches.items():
        for count in workers:
            yield Contender(name, search, count, threads // count, model, how)


def one_pass(how: Any) -> dict[str, dict[str, Any]]:
    """As the model decodes by default; one that predicts lengths with all of them, some and one.

    Example:
        >>> list(one_pass(LengthDecoding(length_share=0.1)))
        ['5 lengths', 'up to 5 lengths', '1 length']
    """
    if not isinstance(how, LengthDecoding):
        return {"": {}}
    found: dict[str, dict[str, Any]] = {}
    if how.length_candidates > 1:
        found[f"{how.length_candidates} lengths"] = {"length_share": 0.0}
        if 0 < how.length_share < 1:  # chosen at export
            found[f"up to {how.length_candidates} lengths"] = {}
    return {**found, "1 length": {"length_candidates": 1}}


def described(model: Exported) -> dict[str, Any]:
    """For the reader of the results."""
    size = model.architecture
    return {
        "system": model.system,
        "int8 of": {"engine": "oaxe", "ctranslate2": "CTranslate2"}[model.kind],
        "layers": f"{size['encoder_layers']}-{size['decoder_layers']}",
        "dimension": size["dim"],
        "vocabulary": size["vocab_size"],
        "MiB": sum(path.stat().st_size for path in model.folder.iterdir()) / 2**20,
        "decoding": str(model.decoding),
    }


def started(contender: Contender, waiting: str | None) -> Any:
    """The process of a contender."""
    kind, folder = contender.exported[:2]
    how = {"workers": contender.workers, "threads": contender.threads, **contender.how}
    return process(kind, folder, how, waiting)


def spread(parts: Batches, count: int) -> Batches:
    """``count`` of the batches, evenly spread."""
    chosen = np.linspace(0, len(parts) - 1, min(count, len(parts))).astype(int)
    return [parts[i] for i in chosen]


def _clock(n: int, run: Callable[[], object]) -> float:
    """Seconds by the contender's own: the median of sentences alone, else of the whole test set."""
    seconds = run()
    assert isinstance(seconds, list)
    return float(median(seconds) if n == 1 else sum(seconds))


def rate(n: int) -> str:
    return f"{n} at once, 1/s"


def threading(n: int) -> str:
    return f"{n} at once, threads"


def best(
    contenders: dict[str, Contender],
    scores: dict[int, dict[str, float]],
    timings: dict[int, dict[str, Timing]],
    sentences: int,
) -> dict[str, dict[str, Any]]:
    """A row for each model and search, with the threads that are best."""
    rows: dict[str, list[str]] = {}
    for name, contender in contenders.items():
        rows.setdefault(contender.row, []).append(name)
    results: dict[str, dict[str, Any]] = {}
    for row, names in rows.items():
        first = contenders[names[0]]
        found = {"model": first.model, "search": first.search, "BLEU": scores[1][names[0]]}
        for n, of_batch in timings.items():
            fastest = min(names, key=lambda name: of_batch[name].median)
            seconds = of_batch[fastest].median
            found |= {ALONE: 1e3 * seconds} if n == 1 else {rate(n): sentences / seconds}
            found[threading(n)] = contenders[fastest].threading
        results[row] = found
    return results


def by_column(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """
    Example:
        >>> by_column({"a": {"x": 1, "y": 2}, "b": {"x": 3}})
        {'x': {'a': 1, 'b': 3}, 'y': {'a': 2}}
    """
    headers = dict.fromkeys(header for row in rows.values() for header in row)
    return {
        header: {name: row[header] for name, row in rows.items() if header in row}
        for header in headers
    }
