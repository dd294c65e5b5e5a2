"""The report of a build: BLEU and speed of both models on this machine, and which one to use."""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
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
from oaxe.training.run import load_translator
from oaxe.training.settings import load_settings
from oaxe.training.validation import Validation, choose_decoding

TEACHER, TEACHER_BEAM = "autoregressive, greedy", "autoregressive, beam 5"
ONE_PASS, ONE_PASS_BEAM = "one pass", "one pass, beam and n-grams"
ENGINE = "one pass, 8 bits for a CPU"  # if it was exported
ENGINE_BEAM = "one pass, beam and n-grams, 8 bits for a CPU"  # of CTC
TEACHER_FOR_CPU = "teacher-cpu"  # if CTranslate2 is installed
CTRANSLATE = {f"{name}, CTranslate2": beam for name, beam in ((TEACHER, 1), (TEACHER_BEAM, 5))}
ALONE, BATCH = 20, 64  # sentences
BATCH_TOKENS = 131_072  # more than BATCH sentences have
MOST_BLEU = 1.0  # that one pass may be below the teacher
WORTH = 0.5  # BLEU that is worth the time of a slower search
NGRAMS = "The n-grams are those of the training text; the autoregressive model searches without."
WITHOUT_CTRANSLATE = (
    "The autoregressive model is searched by PyTorch here. CTranslate2 does that several times as "
    'fast, and is not installed: `pip install "oaxe[ctranslate2]"`, remove cpu, model and '
    "report.json in {out}, and give the same command again, to compare with it."
)
POOR = 5.0  # BLEU: neither model is of any use


@dataclass(frozen=True)
class Scores:
    """The scores of a model, decoded in one way."""

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
    text += unfair(scores, out)
    text += [markdown(table(scores, plan)), NGRAMS, f"BLEU: {signature}", use(advised, scores)]
    write_whole(out / "report.md", "\n\n".join(text) + "\n")
    models = {name: asdict(of) for name, of in scores.items()}
    report = {"recommended": advised, "why": why, "models": models, "signature": signature}
    write_json(out / "report.json", report | {"environment": environment()})


class Way(NamedTuple):
    """A model, decoded in one way."""

    about: dict[str, Any]  # the first fields of its scores
    translate: Callable[[list[str]], list[str]]
    together: Callable[[list[str]], list[str]]  # a whole batch


def measure(
    out: Path, one_pass: Path, plan: Plan, console: Console
) -> tuple[dict[str, Scores], str]:
    """Both models, each decoded in two ways, and the exported ones; and sacreBLEU's signature."""
    teacher = load_translator(str(out / "teacher"), plan.asked.device)
    student = load_translator(str(one_pass), plan.asked.device)
    on_cpu = plan.asked.device == "cpu" and is_exported(out / "cpu")
    engine = Translator.from_pretrained(out / "cpu") if on_cpu else None
    if engine and engine.decoding.get("lm"):  # what is best was found when it was exported
        beam = searched(engine.decoding) | {"lm": str(out / "ngrams")}
    else:
        beam = best_beam(student, one_pass, out)
    ways = {
        TEACHER: way(out / "teacher", teacher, {"beam": 1}),
        TEACHER_BEAM: way(out / "teacher", teacher, {"beam": 5}),
        ONE_PASS: way(out / "model", student, {}),
        ONE_PASS_BEAM: way(out / "model", student, beam),
    }
    if engine:
        has_ngrams = bool(engine.decoding.get("lm"))
        plain = searched(student.decoding) if has_ngrams else {}
        ways[ENGINE] = way(out / "cpu", engine, plain, student.system.n_parameters)
        if has_ngrams:
            ways[ENGINE_BEAM] = way(out / "cpu", engine, {}, student.system.n_parameters)
    if plan.asked.device == "cpu" and (out / TEACHER_FOR_CPU).is_dir():
        for name, width in CTRANSLATE.items():
            ways[name] = by_ctranslate(out / TEACHER_FOR_CPU, teacher, width)
    splits = [split for split in read_manifest(out / "data").splits if split != "train"]
    texts = {split: Corpus.open(out / "data", split) for split in splits}
    bleu: dict[str, dict[str, Any]] = {}
    for name, each in ways.items():
        console.print(f"translating: {name}")
        language, most = plan.asked.target_language, plan.sentences
        bleu[name] = {s: _bleu(each, text, language, most) for s, text in texts.items()}
    lines = texts[splits[-1]].sources_text[:BATCH]
    alone = {name: each.translate for name, each in ways.items()}
    together = {name: each.together for name, each in ways.items()}
    speed = timings(alone, together, lines, ALONE)
    scores = {
        name: Scores(
            **each.about,
            valid=bleu[name]["valid"]["score"],
            test=bleu[name]["test"]["score"] if "test" in splits else None,
            latency_ms=speed[name]["latency_ms"]["median"],
            sentences_per_second=speed[name]["sentences_per_second"],
        )
        for name, each in ways.items()
    }
    return scores, bleu[ONE_PASS]["valid"]["signature"]


def way(
    folder: Path, translator: Translator, options: dict[str, Any], parameters: int | None = None
) -> Way:
    own = changed(translator, options)
    about = {
        "folder": str(folder),
        "system": own.system.name,
        "parameters": own.system.n_parameters if parameters is None else parameters,
        "decoding": str(own.decoding_with()),
        "options": options,
    }
    return Way(about, own.translate, partial(own.translate, batch_tokens=BATCH_TOKENS))


def by_ctranslate(folder: Path, teacher: Translator, beam: int) -> Way:
    """CTranslate2 in 8 bits, with a worker for each core."""
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
    about = {
        "folder": str(folder),
        "system": system.name,
        "parameters": system.n_parameters,
        "decoding": f"beam {beam}, in 8 bits",
        "options": {},
    }
    return Way(about, translate, translate)


def changed(translator: Translator, options: Mapping[str, Any]) -> Translator:
    """The same model, decoded with other options."""
    return Translator(
        translator.system,
        translator.subwords,
        languages=translator.languages,
        decoding=translator.decoding | dict(options),
    )


def searched(decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Of options of decoding those that say how one pass is searched."""
    names = "method", "bonus", "length_penalty", "lm_weight"
    return {name: decoding[name] for name in names if name in decoding}


def best_beam(translator: Translator, run: Path, out: Path) -> dict[str, Any]:
    """Options of beam search with n-grams, the best on validation text."""
    options: dict[str, Any] = {"method": "beam", "lm": str(out / "ngrams")}
    own, settings = changed(translator, options), load_settings(run / "config.yaml")
    choose_decoding(own, Validation.of(own, out / "data", settings))
    return options | {n: own.decoding[n] for n in own.system.choices(own.decoding_with())}


def _bleu(way: Way, corpus: Corpus, language: str, most: int) -> dict[str, Any]:
    count = most or len(corpus)
    found = way.together(corpus.sources_text[:count])
    return corpus_bleu(found, [corpus.targets_text[:count]], language)


def recommend(scores: Mapping[str, Scores]) -> tuple[str, str]:
    """Which of them to use, and why in plain words.

    One pass pays if its validation BLEU is at most 1 below that of the autoregressive model at its
    best, and if it is faster than greedy search, or else better than that and faster than beam
    search: sentence by sentence or in batches. Of the ways that pay, it is the fastest of those
    that are nearly as good as the best.
    """
    best = max((TEACHER, TEACHER_BEAM), key=lambda name: scores[name].valid)
    if max(scores[best].valid, scores[ONE_PASS].valid) < POOR:
        both = (
            f"{scores[best].valid:.1f} BLEU on validation, {scores[ONE_PASS].valid:.1f} in one pass"
        )
        return fastest_of_the_best(scores, scores), (
            f"Too little was learned for any use: {both}. Check that the files are parallel, and "
            "give more text or more minutes."
        )
    problems, reasons = list[str](), dict[str, str]()
    for name in (ENGINE, ENGINE_BEAM, ONE_PASS, ONE_PASS_BEAM):
        if name not in scores:
            continue
        own = scores[name]
        gain, over_greedy = own.valid - scores[best].valid, own.valid - scores[TEACHER].valid
        compared = (
            f"{abs(gain):.1f} BLEU {'above' if gain >= 0 else 'below'} the autoregressive model on "
            f"validation ({own.valid:.1f} and {scores[best].valid:.1f})"
        )
        if gain < -MOST_BLEU:
            problems.append(f"{name} is {compared}")
            continue
        than_greedy, than_beam = (_speed(scores, name, of) for of in (TEACHER, TEACHER_BEAM))
        if than_greedy.is_faster:
            reasons[name] = f"One pass pays: {name} is {compared}, and {than_greedy}."
        elif than_beam.is_faster and over_greedy >= WORTH:
            reasons[name] = (
                f"One pass pays: {name} is {compared}, and {than_beam}. Greedy search is faster, "
                f"with {over_greedy:.1f} BLEU less than one pass."
            )
        else:
            problems.append(f"{name} is slower: {than_greedy}")
    if not reasons:
        return best, (
            f"One pass does not pay here: {'; '.join(problems)}. Use the autoregressive model (on "
            "a CPU, oaxe export --format ctranslate2), or give more text or more minutes."
        )
    advised = fastest_of_the_best(scores, reasons)
    return advised, reasons[advised] + _quicker(scores, advised, reasons)


def fastest_of_the_best(scores: Mapping[str, Scores], names: Collection[str]) -> str:
    """The fastest for one sentence, of those that are at most WORTH below the best."""
    enough = max(scores[name].valid for name in names) - WORTH
    good = (name for name in names if scores[name].valid >= enough)
    return min(good, key=lambda name: scores[name].latency_ms)


def unfair(scores: Mapping[str, Scores], out: Path) -> list[str]:
    """A note if CTranslate2, which would make the autoregressive model faster, is missing."""
    missing = ENGINE in scores and not scores.keys() & CTRANSLATE
    return [WITHOUT_CTRANSLATE.format(out=out)] if missing else []


class Speed(NamedTuple):
    """How many times as fast one pass is as a search of the autoregressive model."""

    alone: float  # one sentence at a time
    together: float  # in batches
    search: str

    @property
    def is_faster(self) -> bool:
        return max(self.alone, self.together) > 1

    def __str__(self) -> str:
        return (
            f"{self.alone:.1f} times as fast as its {self.search} one sentence at a time and "
            f"{self.together:.1f} times in batches of {BATCH}"
        )


def _speed(scores: Mapping[str, Scores], name: str, search: str) -> Speed:
    """The speed relative to the fastest program with this search."""
    own, by_ctranslate = scores[name], f"{search}, CTranslate2"
    rivals = [scores[one] for one in (search, by_ctranslate) if one in scores]
    return Speed(
        min(of.latency_ms for of in rivals) / own.latency_ms,
        own.sentences_per_second / max(of.sentences_per_second for of in rivals),
        f"{'greedy' if search == TEACHER else 'beam'} search "
        f"{'by CTranslate2' if by_ctranslate in scores else 'here'}",
    )


def _quicker(scores: Mapping[str, Scores], advised: str, others: Iterable[str]) -> str:
    """How much faster the fastest of the other ways is, and its loss in BLEU."""
    own = scores[advised]
    name = min(others, key=lambda name: scores[name].latency_ms)
    share, loss = scores[name].latency_ms / own.latency_ms, own.valid - scores[name].valid
    if share >= 1:
        return ""
    return f" {name[0].upper()}{name[1:]} takes {share:.2f} of its time, with {loss:.1f} BLEU less."


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
