"""One report of one or more systems on one test set: `oaxe evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from oaxe.decoding.translator import Option, Translator
from oaxe.evaluation.fluency import perplexity
from oaxe.evaluation.gold import Gold, blank_note
from oaxe.evaluation.ncm import ncm
from oaxe.evaluation.repetition import repeated_percent
from oaxe.evaluation.scores import (
    LENGTHS,
    Metrics,
    bleu,
    bleu_by_length,
    chrf,
    metrics_for,
    single_reference_bleu,
)
from oaxe.evaluation.side_by_side import examples
from oaxe.evaluation.significance import Test, paired_test
from oaxe.evaluation.speed import measure_speed, speed_up
from oaxe.evaluation.systems import (
    System,
    load_model,
    names_and_paths,
    read_system,
    translate_system,
    weights_checksum,
)
from oaxe.support.environment import environment
from oaxe.support.errors import UserError
from oaxe.text.languages import is_unspaced, unit, words
from oaxe.text.manifest import checksum
from oaxe.training.run import load_translator

FORMAT = 2
TOKENIZED = 100  # lines that end in a period of its own, as for sacreBLEU's own warning
Report = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How to measure."""

    baseline: str | None = None  # the first system
    test: Test = "ar"
    trials: int = 0
    lowercase: bool = False
    lengths: Sequence[int] = LENGTHS
    examples: int = 20
    lm: str | None = None
    speed: bool = False
    speed_sentences: int = 100
    device: str | None = None
    bf16: bool = False
    batch_tokens: int = 16_384
    decoding: Mapping[str, Option] = field(default_factory=dict)


def evaluate(
    gold: Gold,
    hypotheses: Sequence[str],
    models: Sequence[str],
    options: Options,
    console: Console | None = None,
) -> tuple[Report, list[System]]:
    """Measure all that can be measured of each system; what cannot is a note in the report.

    Args:
        gold: the test set.
        hypotheses: files of translations, ``NAME=path`` or ``path``.
        models: models that translate now, named alike.
    """
    paths = names_and_paths([*hypotheses, *models])
    if not paths:
        raise UserError("there is nothing to evaluate: give --hyp, --model, or several of them")
    baseline = options.baseline or next(iter(paths))
    if baseline not in paths:
        raise UserError(f"--baseline {baseline} is none of the systems: {', '.join(paths)}")
    if models and gold.sources is None:
        raise UserError("--model needs text to translate: give --source, --data or --multiref")
    lm = None if options.lm is None else load_lm(options.lm, options.device)
    given = list(paths.items())
    translators = {
        name: load_model(path, options.device, options.decoding)
        for name, path in given[len(hypotheses) :]
    }
    into = {translator.languages[1] for translator in translators.values()} - {""}
    if not gold.language and len(into) == 1:
        gold = replace(gold, language=into.pop())
    systems = [read_system(name, Path(path), gold) for name, path in given[: len(hypotheses)]]
    # All is read and loaded before the first model begins its work.
    systems += [
        _translate(name, paths[name], translator, gold, options, console)
        for name, translator in translators.items()
    ]
    metrics = metrics_for(gold, lowercase=options.lowercase)
    outputs = {system.name: system.output for system in systems}
    tests = paired_test(metrics, outputs, baseline, test=options.test, trials=options.trials)
    found = {
        system.name: _measure(system, gold, metrics, options, lm)
        | {"significance": tests.get(system.name)}
        for system in systems
    }
    if options.speed:
        _add_speed(found, systems, gold, baseline, options)
    report = {
        "format": FORMAT,
        "language": gold.language,
        "unit": unit(gold.language),
        "sentences": len(gold),
        "baseline": baseline,
        "gold": {
            "references": [gold.fewest, gold.most],
            "repetition": repeated_percent(words(text, gold.language) for text in gold.first),
            "fluency": _fluency(lm, gold.first, gold, options),
        },
        "systems": found,
        "notes": _notes(systems, metrics, gold, options),
        "examples": examples(metrics, gold, systems, options.examples) if options.examples else [],
        "inputs": {
            str(path): asdict(checksum(path)) if path.is_file() else None  # a pipe is empty by now
            for path in (*gold.files, *(Path(s.given) for s in systems if s.translator is None))
        },
        "environment": environment(),
    }
    # Who measures one system finds its figures without looking for its name.
    return (found[baseline] if len(found) == 1 else {}) | report, systems


def load_lm(model: str, device: str | None) -> Translator:
    lm = load_translator(model, device)
    if lm.system.translates:
        raise UserError(
            f"--lm {model} is a translator ({lm.system.name}), not a language model; train one on "
            "the target side with model.system: language_model"
        )
    return lm


def _translate(
    name: str,
    path: str,
    translator: Translator,
    gold: Gold,
    options: Options,
    console: Console | None,
) -> System:
    into = translator.languages[1]
    if console is not None:
        console.print(f"{name}: translating {len(gold):,} sentences", highlight=False)
        if into and gold.language and into != gold.language:
            console.print(f"warning: {name} translates into {into}, references are {gold.language}")
    return translate_system(
        name,
        path,
        translator,
        gold.sources or [],
        batch_tokens=options.batch_tokens,
        bf16=options.bf16,
    )


def _measure(
    system: System, gold: Gold, metrics: Metrics, options: Options, lm: Translator | None
) -> dict[str, Any]:
    translator = system.translator
    repetition = repeated_percent(words(text, gold.language) for text in system.raw)
    multimodality = None
    if translator is not None and not translator.system.no_ncm:
        multimodality = ncm(system.translations)
    return {
        "bleu": bleu(metrics, system.output),
        "chrf": chrf(metrics, system.output),
        "repetition": repetition,
        "repetition_of_subwords": (
            repeated_percent(t.tokens for t in system.translations) if translator else None
        ),
        "deduplication": {
            "unit": system.unit,
            "is_scored": system.deduplicates,
            "bleu_with": bleu(metrics, system.without_repeats)["score"],
            "bleu_without": bleu(metrics, system.raw)["score"],
        },
        "single_reference_bleu": (
            single_reference_bleu(metrics, gold, system.output) if gold.most > 1 else None
        ),
        "bleu_by_length": bleu_by_length(metrics, gold, system.output, options.lengths),
        "ncm": multimodality,
        "fluency": _fluency(lm, system.without_repeats, gold, options),
        "speed": None,
        "given": system.given,
        "model": (
            {
                "system": translator.system.name,
                "crc32": weights_checksum(translator),
                "decoding": translator.decoding,
                "decoding_in_words": str(translator.decoding_with()),
            }
            if translator
            else None
        ),
    }


def _fluency(
    lm: Translator | None, texts: Sequence[str], gold: Gold, options: Options
) -> dict[str, Any] | None:
    if lm is None:
        return None
    return perplexity(lm, texts, gold.language, batch_tokens=options.batch_tokens)


def _add_speed(
    found: dict[str, dict[str, Any]],
    systems: Sequence[System],
    gold: Gold,
    baseline: str,
    options: Options,
) -> None:
    translators = {s.name: s.translator for s in systems if s.translator is not None}
    speeds = measure_speed(
        translators,
        gold.sources or [],
        sentences=options.speed_sentences,
        batch_tokens=options.batch_tokens,
        bf16=options.bf16,
    )
    for name, speed in speeds.items():
        of = speeds.get(baseline)
        found[name]["speed"] = speed | {"speed_up": None if of is None else speed_up(speed, of)}


def _notes(systems: Sequence[System], metrics: Metrics, gold: Gold, options: Options) -> list[str]:
    """What a reader of the figures should know, and why some of them are not there."""
    notes = [*gold.notes]
    if metrics.tokenizer == "13a" and is_unspaced(gold.first):
        notes.append(
            "the references are written without spaces, and BLEU takes each line for one word: "
            "give --lang ja, zh or th"
        )
    if metrics.tokenizer == "char":
        better = ' ("ja-mecab" needs: pip install "sacrebleu[ja]")' * gold.language.startswith("ja")
        notes.append(f"BLEU is of characters{better}")
    for system in systems:
        tokenized = sum(line.endswith(" .") for line in system.output)
        if tokenized >= TOKENIZED:
            notes.append(
                f"{system.name} looks tokenized, {tokenized:,} of its lines end in ' .'; "
                "scores of detokenized text can be compared, others cannot"
            )
        if system.translator is None:
            pairs = zip(system.raw, gold.first, strict=True)
            silent = [not line.strip() and bool(first.strip()) for line, first in pairs]
            notes += blank_note(system.given, silent, " where the reference is not")
            if options.speed:
                notes.append(f"{system.name} has no speed: it is a file")
        elif reason := system.translator.system.no_ncm:
            notes.append(f"{system.name} has no NCM: {reason}")
    return notes
