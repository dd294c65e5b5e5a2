"""The model in the box: shown at work, and made from a run, with its card and its scores.

The sentences are the first five of at least ten words of the Tatoeba test set (tatoeba.org, CC BY
2.0 FR). Beside them is what a CMLM trained with XE made of them: docs/results/translation.md.
"""

import shutil
import statistics
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from oaxe.decoding.box import BOX
from oaxe.decoding.translator import Translator
from oaxe.support import strict_json
from oaxe.support.errors import UserError
from oaxe.support.files import write_json, write_whole
from reproduction.archive import archive_path

SENTENCES = {  # by their lines in the test set, counted from 1
    3: "Lower air pressure makes it more difficult for humans to breathe and get enough oxygen.",
    9: "I am not a hundred percent sure it is wool.",
    14: "We will explore every planet that goes around the sun.",
    19: "Feral cats threaten the survival of over 100 native species in Australia.",
    25: "Tom wondered if it would be difficult to find a job in Boston.",
}
DATASET, RECORDED = "tatoeba-en-de", "small/results/cmlm-seed-1/test.hyp.txt"
TIMES = 5  # that a sentence is translated, for the median
LARGEST = 10_000_000  # bytes of the folder
ORDER, PRUNED = 3, (0, 2, 2)  # n-grams that fit into that

CARD = """---
language: [en, de]
license: cc-by-2.0
library_name: oaxe
pipeline_tag: translation
tags: [{system}]
---

# English to German in one pass, small enough for a package

The model in the box of oaxe: `{system}`, size {size}, {precision}, {megabytes:.1f} MB, for a CPU.
It is a model to try, not one to rely on: it was trained on short everyday sentences, and knows few
names and rare words.

```sh
oaxe translate "How are you today?"
```

```python
oaxe.Translator.from_pretrained().translate(["How are you today?"])
```

## Scores

The test set of our selection of Tatoeba, {sentences:,} sentences, none of them in training.
BLEU: {signature}.

| | BLEU | brevity penalty |
|---|---|---|
{rows}

Of the translations in 8 bits, {same:.1%} are those of the same model in torch.

## Training

{pairs:,} pairs, {text} text. The commands, with the machine of each; all settings are the
configurations' of that name ([configs](../../configs/tatoeba)):

```sh
{commands}
```

## Data and licence

The sentences are from [Tatoeba](https://tatoeba.org), by its contributors, under
[CC BY 2.0 FR](https://creativecommons.org/licenses/by/2.0/fr/), selected by us
([data](https://tatoeba.org/downloads)). The model is distributed under the same licence.
"""


def show_translations(console: Console) -> None:
    """Print them, or a line that there is no model."""
    try:
        translator = Translator.from_pretrained()
    except UserError as error:
        console.print(f"No translations to begin with: {error}.\n")
        return
    console.rule("English to German in one pass, by the model in the box")
    translator.translate(["Hello."])  # the first is slower
    for (line, source), recorded in zip(SENTENCES.items(), recorded_outputs(), strict=True):
        seconds = []
        for _ in range(TIMES):
            start = time.perf_counter()
            (found,) = translator.translate([source])
            seconds.append(time.perf_counter() - start)
        rows = {
            f"test {line}": source,
            "CMLM + XE": recorded,
            f"{1e3 * statistics.median(seconds):.0f} ms": found,
        }
        for name, text in rows.items():
            console.print(f"{name:<10} {text}", soft_wrap=True)
        console.print()
    console.print(
        "CMLM + XE is the paper's baseline, Transformer-base, trained on the same sentences; its "
        "outputs are from the published results.\n"
    )


def recorded_outputs() -> list[str]:
    """What the CMLM made of these sentences."""
    with tarfile.open(archive_path(DATASET)) as tar:
        file = tar.extractfile(f"{DATASET}/{RECORDED}")
        assert file
        lines = file.read().decode().splitlines()
    return [lines[line - 1] for line in SENTENCES]


def make(
    run: Path,
    data: Path,
    others: Mapping[str, Path],
    *,
    distilled: bool,
    console: Console,
    folder: Path = BOX,
) -> None:
    """Export a run into the package, score it on the test set, and write its card.

    Args:
        run: of a one-pass model.
        data: prepared, with a test set; the n-grams are those of its training text.
        others: by name: runs to score beside it, decoded as they were saved.
        distilled: what text it was trained on, for the card.
        console: where to say how it is decoded.
        folder: to write; replaced.
    """
    from oaxe.decoding.exported import export
    from oaxe.text.bleu import corpus_bleu
    from oaxe.text.corpus import Corpus
    from oaxe.text.manifest import read_manifest
    from oaxe.text.ngram_files import NGRAMS, count_ngrams
    from oaxe.training.exporting import choose_cpu_decoding
    from oaxe.training.run import load_translator
    from oaxe.training.settings import load_settings

    settings = load_settings(run / "config.yaml")
    translators = {name: load_translator(str(path), "cpu") for name, path in others.items()}
    own = translators["the same in torch"] = load_translator(str(run), "cpu")
    shutil.rmtree(folder, ignore_errors=True)
    with TemporaryDirectory() as lm:
        count_ngrams(data, Path(lm), ORDER, PRUNED)
        choose_cpu_decoding(own, str(run), console, Path(lm))
        export(own, folder, int8=True)
        own.change_decoding(lm=str(folder / NGRAMS))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > LARGEST:
        raise UserError(f"the model has {size:,} bytes, at most {LARGEST:,} may be in the package")
    box = translators["**the model in the box**"] = Translator.from_pretrained(folder)
    test = Corpus.open(data, "test")
    found = {name: model.translate(test.sources_text) for name, model in translators.items()}
    bleu = {name: corpus_bleu(texts, [test.targets_text], "de") for name, texts in found.items()}
    same = agreement(found["the same in torch"], found["**the model in the box**"])
    rows = [
        f"| {name}: {translators[name].decoding_with()} | {of['score']:.1f} "
        f"| {of['brevity_penalty']:.3f} |"
        for name, of in bleu.items()
    ]
    commands = [f"# {name}\n{command_of(path)}" for name, path in others.items()]
    commands += [f"# this model\n{command_of(run)}"]
    limits = ",".join(map(str, PRUNED))
    commands += [f"oaxe ngrams {data} -o lm --order {ORDER} --prune {limits}"]
    commands += [f"oaxe export {run} en-de --int8 --lm lm"]
    card = CARD.format(
        system=own.system.name,
        size=settings.model.size,
        precision=box.system.precision,
        megabytes=size / 1e6,
        sentences=len(test),
        signature=next(iter(bleu.values()))["signature"],
        rows="\n".join(rows),
        same=same,
        pairs=read_manifest(data).splits["train"].pairs,
        text="distilled" if distilled else "raw",
        commands="\n".join(commands),
    )
    write_json(folder / "scores.json", {"same_as_torch": same, "bleu": bleu})
    write_whole(folder / "README.md", card)


def agreement(texts: Sequence[str], others: Sequence[str]) -> float:
    """The share of equal texts.

    Example:
        >>> agreement(["a", "b"], ["a", "c"])
        0.5
    """
    return sum(a == b for a, b in zip(texts, others, strict=True)) / len(texts)


def command_of(run: Path) -> str:
    """The command that made a run, and where; of its first start."""
    first = strict_json.read(run / "environment.json")[0]
    where = f"oaxe {first['oaxe']} ({first['commit']}), torch {first['torch']}, {first['device']}"
    return f"{' '.join(first['command'])}  # {where}"
