"""The report of a build: BLEU and speed of both models on this machine, and which one to use."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from oaxe.decoding.saved import is_exported
from oaxe.decoding.translator import Translator
from oaxe.evaluation.speed import timings
from oaxe.pipeline.plan import Plan
from oaxe.support.environment import environment
from oaxe.support.files import write_json, write_whole
from oaxe.support.tables import TextTable, markdown, number
from oaxe.text.bleu import corpus_bleu
from oaxe.text.corpus import Corpus
from oaxe.text.manifest import read_manifest
from oaxe.training.ranks import Ranks
from oaxe.training.run import load_translator
from oaxe.training.settings import load_settings
from oaxe.training.validation import Validation, choose_decoding

TEACHER, TEACHER_BEAM = "autoregressive, greedy", "autoregressive, beam 5"
ONE_PASS, ONE_PASS_BEAM = "one pass", "one pass, beam and n-grams"
ENGINE = "one pass, 8 bits for a CPU"  # if it was exported
TEACHER_FOR_CPU = "teacher-cpu"  # if CTranslate2 is installed
CTRANSLATE = {f"{name}, CTranslate2": beam for name, beam in ((TEACHER, 1), (TEACHER_BEAM, 5))}
ALONE, BATCH = 20, 64  # sentences
BATCH_TOKENS = 131_072  # more than so many sentences have
MOST_BLEU = 1.0  # that one pass may be below the teacher
POOR = 5.0  # BLEU: neither model is of any use


@dataclass(frozen=True)
class Scores:
    """Of a model, decoded in one way."""

    folder: str
    system: str
    parameters: int
    decoding: str  # in words
    options: dict[str, Any]  # of `oaxe translate --set`, to decode like this
    valid: float  # BLEU
    test: float | None
    latency_ms: float  # batch 1
    sentences_per_second: float  # batch 64


def write_report(out: Path, one_pass: Path, plan: Plan, console: Console) -> None:
    """Measure everything; ``one_pass`` is the run of that model. report.json is written last."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="cut after")  # long lines, at every translation
        scores, signature = measure(out, one_pass, plan, console)
    advised, why = recommend(scores)
    text = [f"# {plan.asked.source_language} to {plan.asked.target_language}", why]
    text += [markdown(table(scores, plan)), f"BLEU: {signature}", use(advised, scores)]
    write_whole(out / "report.md", "\n\n".join(text) + "\n")
    models = {name: asdict(of) for name, of in scores.items()}
    report = {"recommended": advised, "why": why, "models": models, "signature": signature}
    write_json(out / "report.json", report | {"environment": environment()})


class Way(NamedTuple):
    """A model, decoded in one way."""

    folder: str
    system: str
    parameters: int
    decoding: str
    options: dict[str, Any]
    translate: Callable[[list[str]], list[str]]
    together: Callable[[list[str]], list[str]]  # a whole batch


def measure(
    out: Path, one_pass: Path, plan: Plan, console: Console
) -> tuple[dict[str, Scores], str]:
    """Both models, each decoded in two ways, and the exported ones; and sacreBLEU's signature."""
    teacher = load_translator(str(out / "teacher"), plan.asked.device)
    student = load_translator(str(one_pass), plan.asked.device)
    ways = {
        TEACHER: way("teacher", teacher, {"beam": 1}),
        TEACHER_BEAM: way("teacher", teacher, {"beam": 5}),
        ONE_PASS: way("model", student, {}),
        ONE_PASS_BEAM: way("model", student, best_beam(student, one_pass, out)),
    }
    if plan.asked.device == "cpu" and is_exported(out / "cpu"):
        engine = Translator.from_pretrained(out / "cpu")
        ways[ENGINE] = way("cpu", engine, {}, student.system.n_parameters)
    if plan.asked.device == "cpu" and (out / TEACHER_FOR_CPU).is_dir():
        for name, beam in CTRANSLATE.items():
            ways[name] = by_ctranslate(out / TEACHER_FOR_CPU, teacher, beam)
    splits = [split for split in read_manifest(out / "data").splits if split != "train"]
    texts = {split: Corpus.open(out / "data", split) for split in splits}
    bleu: dict[str, dict[str, Any]] = {}
    for name, each in ways.items():
        console.print(f"translating: {name}", highlight=False)
        language, most = plan.asked.target_language, plan.sentences
        bleu[name] = {s: _bleu(each, text, language, most) for s, text in texts.items()}
    lines = texts[splits[-1]].sources_text[:BATCH]
    alone = {name: each.translate for name, each in ways.items()}
    together = {name: each.together for name, each in ways.items()}
    speed = timings(alone, together, lines, ALONE)
    scores = {
        name: Scores(
            folder=str(out / each.folder),
            system=each.system,
            parameters=each.parameters,
            decoding=each.decoding,
            options=each.options,
            valid=bleu[name]["valid"]["score"],
            test=bleu[name]["test"]["score"] if "test" in splits else None,
            latency_ms=speed[name]["latency_ms"]["median"],
            sentences_per_second=speed[name]["sentences_per_second"],
        )
        for name, each in ways.items()
    }
    return scores, bleu[ONE_PASS]["valid"]["signature"]


def way(
    folder: str, translator: Translator, options: dict[str, Any], parameters: int | None = None
) -> Way:
    own = changed(translator, options)
    return Way(
        folder,
        own.system.name,
        own.system.n_parameters if parameters is None else parameters,
        str(own.decoding_with()),
        options,
        own.translate,
        partial(own.translate, batch_tokens=BATCH_TOKENS),
    )


def by_ctranslate(folder: Path, teacher: Translator, beam: int) -> Way:
    """In 8 bits, with a worker for each core."""
    from oaxe.engine.ctranslate import Search
    from oaxe.engine.engine import available_threads

    system, how = teacher.system, teacher.decoding_with()
    translate = Search(
        folder,
        beam_size=beam,
        length_penalty=how.length_penalty,
        max_length=system.architecture["max_length"],
        max_ratio=how.max_ratio,
        workers=available_threads(),
    ).translate
    in_words = f"beam {beam}, in 8 bits"
    return Way(folder.name, system.name, system.n_parameters, in_words, {}, translate, translate)


def changed(translator: Translator, options: Mapping[str, Any]) -> Translator:
    """The same model, decoded with other options."""
    return Translator(
        translator.system,
        translator.subwords,
        languages=translator.languages,
        decoding=translator.decoding | dict(options),
    )


def best_beam(translator: Translator, run: Path, out: Path) -> dict[str, Any]:
    """Options of beam search with n-grams, the best on validation text."""
    options: dict[str, Any] = {"method": "beam", "lm": str(out / "ngrams")}
    own, settings = changed(translator, options), load_settings(run / "config.yaml")
    ranks = Ranks(0, 1, own.system.device)
    valid = Corpus.open(out / "data", "valid")
    choose_decoding(own, Validation(valid, settings, ranks, lambda _: 0.0, "bleu"))
    return options | {n: own.decoding[n] for n in own.system.choices(own.decoding_with())}


def _bleu(way: Way, corpus: Corpus, language: str, most: int) -> dict[str, Any]:
    count = most or len(corpus)
    found = way.together(corpus.sources_text[:count])
    return corpus_bleu(found, [corpus.targets_text[:count]], language)


def recommend(scores: Mapping[str, Scores]) -> tuple[str, str]:
    """Which of them to use, and why in plain words.

    One pass pays if its validation BLEU is at most 1 below that of the teacher at its best, and if
    it is faster than the teacher at its fastest, sentence by sentence or in batches.
    """
    best = max((TEACHER, TEACHER_BEAM), key=lambda name: scores[name].valid)
    greedy = [scores[name] for name in (TEACHER, *CTRANSLATE) if name in scores]
    fastest = min(of.latency_ms for of in greedy), max(of.sentences_per_second for of in greedy)
    searcher = "by CTranslate2" if len(greedy) > 1 else "here"
    problems = []
    if max(scores[best].valid, scores[ONE_PASS].valid) < POOR:
        both = (
            f"{scores[best].valid:.1f} BLEU on validation, {scores[ONE_PASS].valid:.1f} in one pass"
        )
        return best, (
            f"Too little was learned for any use: {both}. Check that the files are parallel, and "
            "give more text or more minutes."
        )
    for name in (ENGINE, ONE_PASS, ONE_PASS_BEAM):
        if name not in scores:
            continue
        own = scores[name]
        gain = own.valid - scores[best].valid
        alone, many = fastest[0] / own.latency_ms, own.sentences_per_second / fastest[1]
        compared = (
            f"{abs(gain):.1f} BLEU {'above' if gain >= 0 else 'below'} the autoregressive model on "
            f"validation ({own.valid:.1f} and {scores[best].valid:.1f})"
        )
        faster = (
            f"{alone:.1f} times as fast as its greedy search {searcher} one sentence at a time and "
            f"{many:.1f} times in batches of {BATCH}"
        )
        if gain < -MOST_BLEU:
            problems.append(f"{name} is {compared}")
        elif max(alone, many) <= 1:
            problems.append(f"{name} is slower: {faster}")
        else:
            return name, f"One pass pays: {name} is {compared}, and {faster}." + _better(
                scores, name
            )
    return best, (
        f"One pass does not pay here: {'; '.join(problems)}. Use the autoregressive model (on a "
        "CPU, oaxe export --format ctranslate2), or give more text or more minutes."
    )


def _better(scores: Mapping[str, Scores], name: str) -> str:
    more = scores[ONE_PASS_BEAM].valid - scores[name].valid
    if more <= 0:
        return ""
    slower = scores[ONE_PASS_BEAM].latency_ms / scores[name].latency_ms
    return f" Beam search with n-grams adds {more:.1f} BLEU, and takes {slower:.1f} times as long."


def table(scores: Mapping[str, Scores], plan: Plan) -> TextTable:
    rows = [
        [
            name,
            f"{own.parameters / 1e6:.1f}",
            number(own.valid),
            number(own.test),
            number(own.latency_ms),
            number(own.sentences_per_second, ".0f"),
            own.decoding,
        ]
        for name, own in scores.items()
    ]
    head = ["model", "million weights", "valid BLEU", "test BLEU", "ms a sentence, batch 1"]
    head += [f"sentences/s, batch {BATCH}", "decoding"]
    first = f"; BLEU of the first {plan.sentences:,} sentences at most" * bool(plan.sentences)
    return TextTable(f"On this machine, {plan.asked.device}{first}", head, rows)


def use(name: str, scores: Mapping[str, Scores]) -> str:
    """The command that translates as is recommended."""
    options = "".join(f" --set {key}={value}" for key, value in scores[name].options.items())
    return f"Use it with: `oaxe translate --model {scores[name].folder}{options}`"
