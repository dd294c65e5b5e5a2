"""Models in an evaluation: loading, translating, and all that depends on their kind."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from oaxe.decoding.lines import load_translator
from oaxe.decoding.translator import OPTIONS, Option, Translator, changed_options
from oaxe.evaluation.ncm import ncm
from oaxe.evaluation.outputs import Output
from oaxe.evaluation.references import References
from oaxe.evaluation.repetition import collapsed
from oaxe.support.errors import UserError

WORDS: dict[str, Callable[[Option], str]] = {
    "beam": lambda n: f"beam {n}" + " (greedy)" * (n == 1),
    "length_penalty": "length penalty {}".format,
    "max_ratio": "length ratio up to {}".format,
    "length_candidates": lambda n: f"{n} length" + "s" * (n > 1),
    "deduplicate": lambda yes: "repeats removed" if yes else "repeats kept",
    "refine_steps": "{} passes".format,
    "remove_blanks": lambda yes: "blanks removed" if yes else "blanks kept",
}
ALWAYS = ("beam", "length_candidates", "deduplicate")  # named even at their default


def load_model(model: str, device: str | None, options: Mapping[str, Option]) -> Translator:
    """A translator that decodes with those of the options that its kind of model has."""
    translator = load_translator(model, device)
    if translator.kind == "lm":
        raise UserError(f"--model {model} is a language model, which cannot translate; see --lm")
    mine = {name: value for name, value in options.items() if name in OPTIONS[translator.kind]}
    translator.decoding = changed_options(translator.kind, translator.decoding, mine)
    return translator


def load_lm(model: str, device: str | None) -> Translator:
    lm = load_translator(model, device)
    if lm.kind != "lm":
        raise UserError(
            f"--lm {model} is a translator of kind {lm.kind}, not a language model; train one on "
            "the target side with model.kind lm"
        )
    return lm


def translate(
    name: str,
    path: str,
    translator: Translator,
    references: References,
    batch_tokens: int,
    bf16: bool,
) -> Output:
    """Translate once, with repeats; they are removed afterwards, as decoding does it."""
    keep_all: dict[str, Option] = {"deduplicate": False} if translator.kind == "nat" else {}
    found = translator.translate_scored(
        references.sources or [], batch_tokens=batch_tokens, bf16=bf16, first_line=1, **keep_all
    )
    best = [translations[0] for translations in found]
    return Output(
        name,
        path,
        raw=[t.text for t in best],
        without_repeats=translator.subwords.decode([collapsed(t.tokens) for t in best]),
        unit="subwords",
        deduplicates=bool(translator.decoding.get("deduplicate", False)),
        translator=translator,
        translations=best,
    )


def ncm_of(output: Output) -> float | None:
    """None where NCM is not defined."""
    translator = output.translator
    if translator is None or why_no_ncm(translator.kind) is not None:
        return None
    return ncm(output.translations, translator.decoding["length_penalty"])


def why_no_ncm(kind: str) -> str | None:
    """The reason why a model of this kind has no NCM."""
    return {
        "nat": None,
        "at": "it chooses word by word, each after having seen those before",
        "ctc": "its output is the sum of many alignments, of which decoding sees one",
    }[kind]


def decodings(report: Mapping[str, Any]) -> list[str]:
    """A line on how models were decoded; none if there are only files."""
    alike: dict[str, list[str]] = {}
    for name, entry in report["systems"].items():
        if model := entry["model"]:
            alike.setdefault(in_words(model["kind"], model["decoding"]), []).append(name)
    found = "; ".join(f"{', '.join(names)}: {how}" for how, names in alike.items())
    return [f"Decoding: {found}"] if found else []


def in_words(kind: str, decoding: Mapping[str, Option]) -> str:
    """How a model of this kind decodes.

    Example:
        >>> in_words("at", {"beam": 5, "length_penalty": 0.6}), in_words("nat", OPTIONS["nat"])
        ('beam 5, length penalty 0.6', '5 lengths, repeats removed')
    """
    if kind == "ctc":
        return "repeats and blanks removed"
    return ", ".join(
        WORDS[name](value)
        for name, value in decoding.items()
        if name in ALWAYS or value != OPTIONS[kind][name]
    )


def unused_options(report: Mapping[str, Any], given: Mapping[str, Option]) -> list[str]:
    """A note on the options that no model of the report has."""
    kinds = {entry["model"]["kind"] for entry in report["systems"].values() if entry["model"]}
    unused = [name for name in given if not any(name in OPTIONS[kind] for kind in kinds)]
    flags = ", ".join("--" + name.replace("_", "-") for name in unused)
    return [f"{flags}: no effect, since no model here decodes with it"] if unused else []


def description(translator: Translator | None) -> dict[str, Any] | None:
    """The model of an output in the report; a file has none."""
    if translator is None:
        return None
    how, crc = translator.decoding, weights_checksum(translator)
    return {"kind": translator.kind, "crc32": crc, "decoding": how}


def weights_checksum(translator: Translator) -> str:
    """CRC32 of the subwords and all weights, wherever they were loaded from."""
    crc = zlib.crc32(translator.subwords.model)
    for tensor in translator.model.state_dict().values():
        crc = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), crc)
    return f"{crc:08x}"
