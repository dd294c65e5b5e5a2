"""How an exported model decodes, chosen on the validation text of its run."""

import warnings
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

from rich.console import Console

from oaxe.decoding.exported import without_beam
from oaxe.decoding.saved import RUN
from oaxe.decoding.translator import Option, Translator
from oaxe.engine.engine import check
from oaxe.support.errors import UserError
from oaxe.text.bleu import corpus_bleu
from oaxe.text.manifest import MANIFEST
from oaxe.training.settings import load_settings
from oaxe.training.validation import Validation, choose_decoding

SHARES = (1.0, 0.5, 0.3, 0.1, 0.03, 0.0)  # of the likeliest length's probability; 1: no other
WORTH = 0.5  # BLEU that is worth twice the time, which is that of twice the lengths
MOST_SENTENCES = 300


def choose_cpu_decoding(
    translator: Translator, model: str, console: Console, ngrams: Path | None = None
) -> bool:
    """Change the defaults of a translator to those that are best on a CPU; whether any were chosen.

    What only torch has is left out, and the options that depended on it are chosen anew. Lengths
    are tried only where that pays, see :func:`choose_share`. Nothing else is changed. Without the
    validation text of its run nothing is chosen.

    Args:
        model: the folder of the translator, which leads to its run.
        ngrams: a folder of n-grams to search with from now on.
    """
    changes: dict[str, Option] = without_beam(translator)
    if ngrams is not None:
        if not hasattr(translator.decoding_with(), "lm"):
            raise UserError(
                f"{model} is a {translator.system.name}, whose search asks no n-grams, as those of "
                "ctc and dag do; leave out --lm"
            )
        translator.change_decoding(**changes)
        changes = {"method": "beam", "lm": str(ngrams)}
        check(translator.decoding_with(**changes))
    translator.change_decoding(**changes)
    validation = validation_of(translator, model)
    if validation is None:
        return False
    how = translator.decoding_with()
    if changes and translator.system.choices(how):
        choose_decoding(translator, validation)
    elif getattr(how, "length_share", None) == 0 and how.length_candidates > 1:
        choose_share(translator, validation)
    else:
        return False
    console.print(f"decoding, chosen on validation: {translator.decoding_with()}")
    return True


def validation_of(translator: Translator, model: str) -> Validation | None:
    """Some sentences of the text that its run was validated with, if that is still there."""
    folders = [Path(model), Path(model).absolute().parent]  # RUN, or RUN/model
    run = next((folder for folder in folders if (folder / RUN).is_file()), None)
    if run is None:
        return None
    settings = load_settings(run / RUN, trusted=[translator.system.name])
    data = Path(settings.data.folder)
    if not (data / MANIFEST).is_file():
        return None
    most = min(settings.validation.max_sentences or MOST_SENTENCES, MOST_SENTENCES)
    settings = replace(
        settings,
        validation=replace(settings.validation, max_sentences=most),
        train=replace(settings.train, precision="fp32"),
    )
    return Validation.of(translator, data, settings)


def choose_share(translator: Translator, validation: Validation) -> list[dict[str, Any]]:
    """The ``length_share`` of the best BLEU, less WORTH for each doubling of the lengths.

    Time on a CPU grows with the number of lengths, which does not depend on what else the machine
    does. Returns all that was tried, fewest lengths first.
    """
    count = validation.n_sentences
    sources = validation.corpus.sources_text[:count]
    references = [validation.corpus.targets_text[:count]]
    tried = []
    for share in SHARES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # long lines
            found = translator.translate_scored(
                sources, batch_tokens=validation.settings.data.batch_tokens, length_share=share
            )
        bleu = corpus_bleu([best.text for best, *_ in found], references, translator.languages[1])
        lengths = sum(map(len, found)) / max(len(found), 1)
        tried.append({"length_share": share, "lengths": lengths, "bleu": bleu["score"]})
    best = max(tried, key=lambda record: record["bleu"] - WORTH * log2(record["lengths"]))
    translator.change_decoding(length_share=best["length_share"])
    return tried
