"""Models in an evaluation: loaded, translating, and described in the report."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from oaxe.decoding.translator import Option, Translator
from oaxe.evaluation.outputs import Output
from oaxe.evaluation.repetition import collapsed
from oaxe.support.checksums import checksum_of
from oaxe.support.errors import UserError
from oaxe.training.run import load_translator


def load_model(
    model: str, device: str | None, options: Mapping[str, Option], systems: Collection[str] = ()
) -> Translator:
    """A translator that decodes with those of the options that its system has."""
    translator = load_translator(model, device, systems)
    if not translator.system.translates:
        raise UserError(f"--model {model} is a language model, which cannot translate; see --lm")
    mine = {name: value for name, value in options.items() if name in translator.decoding}
    translator.change_decoding(**mine)
    return translator


def load_lm(model: str, device: str | None, systems: Collection[str] = ()) -> Translator:
    lm = load_translator(model, device, systems)
    if lm.system.translates:
        raise UserError(
            f"--lm {model} is a translator ({lm.system.name}), not a language model; train one on "
            "the target side with model.system: language_model"
        )
    return lm


def translate(
    name: str,
    path: str,
    translator: Translator,
    sources: Sequence[str],
    batch_tokens: int,
    bf16: bool,
) -> Output:
    """Translate once, with repeats; they are merged afterwards, where decoding would do it."""
    merges = translator.decoding.get("repeats") == "merge"
    keep_all: dict[str, Option] = {"repeats": "keep"} if merges else {}
    found = translator.translate_scored(
        sources, batch_tokens=batch_tokens, bf16=bf16, first_line=1, most=1, **keep_all
    )
    best = [translations[0] for translations in found]
    return Output(
        name,
        path,
        raw=[t.text for t in best],
        without_repeats=translator.subwords.decode([collapsed(t.tokens) for t in best]),
        unit="subwords",
        deduplicates=merges,
        translator=translator,
        translations=best,
    )


def decodings(report: Mapping[str, Any]) -> list[str]:
    """A line on how models were decoded; none if there are only files."""
    alike: dict[str, list[str]] = {}
    for name, entry in report["systems"].items():
        if model := entry["model"]:
            alike.setdefault(model["decoding_in_words"], []).append(name)
    found = "; ".join(f"{', '.join(names)}: {how}" for how, names in alike.items())
    return [f"Decoding: {found}"] if found else []


def unused_options(report: Mapping[str, Any], given: Mapping[str, Option]) -> list[str]:
    """A note on the options that no model of the report has."""
    models = [entry["model"] for entry in report["systems"].values() if entry["model"]]
    unused = [name for name in given if not any(name in model["decoding"] for model in models)]
    return [f"{', '.join(unused)}: no model here has this option of decoding"] if unused else []


def description(translator: Translator | None) -> dict[str, Any] | None:
    """The model of an output in the report; a file has none."""
    if translator is None:
        return None
    return {
        "system": translator.system.name,
        "crc32": weights_checksum(translator),
        "decoding": translator.decoding,
        "decoding_in_words": str(translator.decoding_with()),
    }


def weights_checksum(translator: Translator) -> str:
    """CRC32 of the subwords and all weights, wherever they were loaded from.

    Of an exported model, of the SHA-256 of its files.
    """
    system = translator.system
    if translator.is_exported:
        weights = (text.encode() for text in system.sha256)
    else:
        tensors = system.state_dict().values()
        weights = (tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors)
    return checksum_of(chain([translator.subwords.model], weights)).crc32
