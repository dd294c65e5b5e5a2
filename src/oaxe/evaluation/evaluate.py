"""``oaxe evaluate``: assembles the report of one or more outputs of a test set."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from oaxe.decoding.translator import Option, Translator
from oaxe.evaluation.bleu import LENGTHS, bleu, bleu_by_length, single_reference_bleu
from oaxe.evaluation.chrf import chrf
from oaxe.evaluation.examples import examples
from oaxe.evaluation.fluency import perplexity
from oaxe.evaluation.models import description, load_lm, load_model, translate
from oaxe.evaluation.ncm import ncm
from oaxe.evaluation.outputs import Output, names_and_paths, read_output
from oaxe.evaluation.references import References, blank_note
from oaxe.evaluation.repetition import repeated_percent
from oaxe.evaluation.significance import Test, paired_test
from oaxe.evaluation.speed import measure_speed, speed_up
from oaxe.support.checksums import checksum
from oaxe.support.environment import environment
from oaxe.support.errors import UserError
from oaxe.text.guess import warn_of_target
from oaxe.text.languages import (
    bleu_tokenizer,
    check_direction,
    is_unspaced,
    language_in_name,
    unit,
    words,
)

FORMAT = 2
TOKENIZED = 100  # lines that end in " .", as for sacreBLEU's own warning
Report = dict[str, Any]


@dataclass(frozen=True)
class Options:
    baseline: str | None = None  # the first output
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
    systems: Sequence[str] = ()  # modules of the user that the models need


def evaluate(
    references: References,
    hypotheses: Sequence[str],
    models: Sequence[str],
    options: Options,
    console: Console | None = None,
) -> tuple[Report, list[Output]]:
    """Compute every metric that is defined for an output; notes say why one is missing.

    Args:
        hypotheses: files of translations, ``NAME=path`` or ``path``.
        models: models that translate now, given alike.
    """
    paths = names_and_paths([*hypotheses, *models])
    if not paths:
        raise UserError("there is nothing to evaluate: give --hyp, --model, or several of them")
    baseline = options.baseline or next(iter(paths))
    if baseline not in paths:
        raise UserError(f"--baseline {baseline} is not among the outputs: {', '.join(paths)}")
    if models and references.sources is None:
        raise UserError("--model needs text to translate: give --source, --data or --multiref")
    # Everything is read and loaded before the first model translates.
    lm = None if options.lm is None else load_lm(options.lm, options.device, options.systems)
    how = options.device, options.decoding, options.systems
    given = list(paths.items())
    files = {name: Path(path) for name, path in given[: len(hypotheses)]}
    translators = {name: load_model(path, *how) for name, path in given[len(hypotheses) :]}
    targets = {translator.languages[1] for translator in translators.values()} - {""}
    if not references.language and len(targets) == 1:
        references = replace(references, language=targets.pop())
    for name, translator in translators.items():
        _check_direction(name, translator.languages, references)
    outputs = [read_output(name, path, references) for name, path in files.items()]
    console = console or Console(quiet=True)
    for name, translator in translators.items():
        console.print(f"{name}: translating {len(references):,} sentences")
        target, wanted = translator.languages[1], references.language
        if target and wanted and target != wanted:
            console.print(f"warning: {name} translates into {target}, references are {wanted}")
        sources, tokens = references.sources or [], options.batch_tokens
        outputs.append(translate(name, paths[name], translator, sources, tokens, options.bf16))
    found = {output.name: _measure(output, references, options, lm) for output in outputs}
    _compare(found, outputs, references, baseline, options)
    report = {
        "format": FORMAT,
        "language": references.language,
        "unit": unit(references.language),
        "sentences": len(references),
        "baseline": baseline,
        "gold": {
            "references": [min(map(len, references.texts)), references.most],
            "repetition": _repetition(references.first, references),
            "fluency": _fluency(lm, references.first, references, options),
        },
        "systems": found,
        "notes": _notes(outputs, references, options),
        "examples": examples(references, outputs, options.examples, options.lowercase),
        "inputs": {
            str(path): asdict(checksum(path)) if path.is_file() else None  # a pipe is empty by now
            for path in (*references.files, *files.values())
        },
        "environment": environment(),
    }
    # A single output has its numbers at the top too.
    return (found[baseline] if len(found) == 1 else {}) | report, outputs


def _check_direction(name: str, its: tuple[str, str], references: References) -> None:
    """Raises UserError if a model is for the other direction; warns if the text looks like that."""
    text, source, target = references.files[-1], references.source_language, references.language
    if len(references.files) > 1:  # not of a file that has both
        source = source or language_in_name(text, its)
    if its[0] != its[1] and (source == its[1] or target == its[0]):
        check_direction(name, its, text, (source, target if target != source else ""))
    warn_of_target(references.sources or (), its, text)


def _measure(
    output: Output, references: References, options: Options, lm: Translator | None
) -> dict[str, Any]:
    """All numbers of one output; those that need a baseline or a clock come later."""
    scored, lowercase = output.scored, options.lowercase
    of_tokens = repeated_percent(t.tokens for t in output.translations)
    several = references.most > 1
    has_ncm = output.translator is not None and not output.translator.system.no_ncm
    return {
        "bleu": bleu(references, scored, lowercase),
        "chrf": chrf(references, scored, lowercase),
        "repetition": _repetition(output.raw, references),
        "repetition_of_subwords": of_tokens if output.translator else None,
        "deduplication": {
            "unit": output.unit,
            "is_scored": output.deduplicates,
            "bleu_with": bleu(references, output.without_repeats, lowercase)["score"],
            "bleu_without": bleu(references, output.raw, lowercase)["score"],
        },
        "single_reference_bleu": (
            single_reference_bleu(references, scored, lowercase) if several else None
        ),
        "bleu_by_length": bleu_by_length(references, scored, options.lengths, lowercase),
        "ncm": ncm(output.translations) if has_ncm else None,
        "fluency": _fluency(lm, output.without_repeats, references, options),
        "speed": None,
        "given": output.given,
        "model": description(output.translator),
        "significance": None,
    }


def _repetition(texts: Sequence[str], references: References) -> float:
    return repeated_percent(words(text, references.language) for text in texts)


def _fluency(
    lm: Translator | None, texts: Sequence[str], references: References, options: Options
) -> dict[str, Any] | None:
    if lm is None:
        return None
    return perplexity(lm, texts, references.language, batch_tokens=options.batch_tokens)


def _compare(
    found: dict[str, dict[str, Any]],
    outputs: Sequence[Output],
    references: References,
    baseline: str,
    options: Options,
) -> None:
    """Add p-values and speed, which compare with the baseline."""
    tests = paired_test(
        references,
        {output.name: output.scored for output in outputs},
        baseline,
        lowercase=options.lowercase,
        test=options.test,
        trials=options.trials,
    )
    for name, test in tests.items():
        found[name]["significance"] = test
    if not options.speed:
        return
    speeds = measure_speed(
        {output.name: output.translator for output in outputs if output.translator},
        references.sources or [],
        sentences=options.speed_sentences,
        batch_tokens=options.batch_tokens,
        bf16=options.bf16,
    )
    for name, speed in speeds.items():
        times = speed_up(speed, speeds[baseline]) if baseline in speeds else None
        found[name]["speed"] = speed | {"speed_up": times}


def _notes(outputs: Sequence[Output], references: References, options: Options) -> list[str]:
    """What a reader of the report should know, and why some numbers are missing."""
    notes, language = [*references.notes], references.language
    tokenizer = bleu_tokenizer(language)
    if tokenizer == "13a" and is_unspaced(references.first):
        notes.append(
            "the references are written without spaces, and BLEU takes each line for one word: "
            "give --lang ja, zh or th"
        )
    if tokenizer == "char":
        better = ' ("ja-mecab" needs: pip install "sacrebleu[ja]")' * language.startswith("ja")
        notes.append(f"BLEU is of characters{better}")
    for output in outputs:
        tokenized = sum(line.endswith(" .") for line in output.scored)
        if tokenized >= TOKENIZED:
            notes.append(
                f"{output.name} looks tokenized: {tokenized:,} of its lines end in ' .'; "
                "only scores of detokenized text can be compared"
            )
        if output.translator is None:
            pairs = zip(output.raw, references.first, strict=True)
            blank = [not line.strip() and bool(first.strip()) for line, first in pairs]
            notes += blank_note(output.given, blank, " where the reference is not")
            if options.speed:
                notes.append(f"{output.name} has no speed: it is a file")
        elif reason := output.translator.system.no_ncm:
            notes.append(f"{output.name} has no NCM: {reason}")
    return notes
