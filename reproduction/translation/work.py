"""What the processes do: prepare, distill, train and test. Each leaves all of it or nothing."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from oaxe.decoding.lines import usable_device
from oaxe.distillation.distill import distill
from oaxe.evaluation.evaluate import Options, evaluate
from oaxe.evaluation.references import References, read_references
from oaxe.support.config import to_mapping
from oaxe.support.environment import environment
from oaxe.support.errors import UserError
from oaxe.support.files import write_whole
from oaxe.support.jobs import StoppedError
from oaxe.text.datasets.catalogue import find
from oaxe.text.datasets.dataset import Dataset, dataset
from oaxe.text.lines import Pair, read_parallel
from oaxe.text.manifest import SUBWORDS, read_manifest
from oaxe.text.prepare import prepare
from oaxe.training.run import train
from oaxe.training.trainer import BEST, CHECKPOINTS, INTERRUPTED
from reproduction.translation.place import RESULT, Place, read_json
from reproduction.translation.systems import SYSTEMS

BEAM = 5
# Test sets of other domains, and the names of their data sets.
OTT, NEWS = ("ott2018", "ott2018-en-de"), ("newstest2014", "newstest-en-de")


def prepare_raw(place: Place, console: Console) -> None:
    """The data set as people wrote it, and its test sets."""
    found = training_set(place, console)
    assert found.train is not None
    recipe, text = place.recipe, place.data("raw").with_name("text")
    prepare(
        place.data("raw"),
        source_language=found.source_language,
        target_language=found.target_language,
        train=beginning(found.train, recipe.pairs, text / "train"),
        valid=found.valid and beginning(found.valid, recipe.held_out, text / "valid"),
        test=beginning(found.test, recipe.held_out, text / "test"),
        vocab_size=recipe.vocab_size or found.vocab_size,
        character_coverage=found.character_coverage,
        max_length=recipe.max_length,
        console=console,
    )
    place.gold.mkdir(parents=True, exist_ok=True)
    for name, gold in held_out_sets(place, found):  # "test" comes last: then all are there
        entries = zip(gold.sources or (), gold.texts, strict=True)
        lines = [json.dumps({"src": s, "refs": r}, ensure_ascii=False) for s, r in entries]
        kept = lines[: recipe.held_out]
        write_whole(place.gold / f"{name}.jsonl", "".join(f"{line}\n" for line in kept))


def training_set(place: Place, console: Console) -> Dataset:
    found = dataset(place.dataset, place.sets, console)
    if found.train is None or found.valid is None:
        raise UserError(f"{place.dataset} is for evaluation: it has nothing to train on")
    return found


def beginning(pair: Pair, count: int | None, stem: Path) -> Pair:
    """The first pairs in files of their own, or the files themselves."""
    if count is None:
        return pair
    stem.parent.mkdir(parents=True, exist_ok=True)
    chunks = read_parallel(*pair)
    pairs = (p for chunk in chunks for p in zip(chunk.sources, chunk.targets, strict=True))
    sources, targets = zip(*islice(pairs, count), strict=True)
    paths = stem.with_suffix(".source"), stem.with_suffix(".target")
    for path, lines in zip(paths, (sources, targets), strict=True):
        write_whole(path, "".join(f"{line}\n" for line in lines))
    return paths


def held_out_sets(place: Place, found: Dataset) -> Iterator[tuple[str, References]]:
    """More references where there are any, text of another domain where that says something."""
    languages = found.source_language, found.target_language
    name, turned = find(place.dataset)
    several = [path for path in found.others if path.suffix == ".jsonl"]
    if several and not turned:
        yield "multiref", read_references(multiref=several[0], language=languages[1])
    if languages == ("en", "de") and (place.sets / OTT[1]).is_dir():
        ott = dataset(OTT[1], place.sets)
        references = [ott.test[1], *ott.others]
        yield OTT[0], read_references(references=references, source=ott.test[0], language="de")
    if name == "europarl-en-de" and (place.sets / NEWS[1]).is_dir():
        source, target = dataset("newstest-" + "-".join(languages), place.sets).test
        yield NEWS[0], read_references(references=[target], source=source, language=languages[1])
    yield "test", read_references(data=place.data("raw"))


def write_teacher_text(place: Place, jobs: int, console: Console) -> None:
    source = Path(read_manifest(place.data("raw")).splits["train"].files[0])
    finished = distill(
        place.teacher_text,
        teacher=str(place.run("teacher", 1)),
        source=source,
        beam=BEAM,
        batch_tokens=4 * place.recipe.batch_tokens,  # without gradients there is room for more
        bf16=place.recipe.bf16,
        processes=jobs if usable_device(None) == "cuda" else 1,
        console=console,
    )
    if not finished:
        raise StoppedError


def prepare_distilled(place: Place, console: Console) -> None:
    """The teacher's text to train on; validation and test stay people's, subwords the same."""
    raw = read_manifest(place.data("raw"))
    source, target = raw.source_language, raw.target_language
    valid, test = ((Path(a), Path(b)) for a, b in (raw.splits[s].files for s in ("valid", "test")))
    prepare(
        place.data("distilled"),
        source_language=source,
        target_language=target,
        train=(place.teacher_text / f"train.{source}", place.teacher_text / f"train.{target}"),
        valid=valid,
        test=test,
        subwords=place.data("raw") / SUBWORDS,
        max_length=place.recipe.max_length,
        console=console,
    )


def train_system(place: Place, name: str, seed: int, jobs: int, console: Console) -> None:
    """Train, or train on, and test what has no result yet; of its run, keep only the model."""
    run = place.run(name, seed)
    if place.has_run(name, seed):
        trained = read_json(run / RESULT)
    else:
        trained = train(place.settings(name, seed), console)
        if trained["stopped"] == INTERRUPTED:
            raise StoppedError
    if not place.result(name, seed).exists():  # or its run was needed for others to start from
        write_result(place, name, seed, trained | {"processes_on_device": jobs}, console)
    for states in (CHECKPOINTS, BEST):  # ten times the model, and there are dozens of systems
        shutil.rmtree(run / states, ignore_errors=True)


def write_result(
    place: Place, name: str, seed: int, trained: dict[str, Any], console: Console
) -> None:
    system = SYSTEMS[name]
    result = {
        "system": name,
        "label": system.label,
        "dataset": place.dataset,
        "preset": place.preset,
        "seed": seed,
        "trained_on": system.data,
        "settings": to_mapping(place.settings(name, seed)),
        "recipe": asdict(place.recipe),
        "environment": environment(),
        "training": trained | progress_of(place.run(name, seed)),
        "tests": {} if system.stage == "lm" else score_system(place, name, seed, console),
    }
    path = place.result(name, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def progress_of(run: Path) -> dict[str, Any]:
    """Target tokens a second, and what was found in each validation."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    found = [record["tokens_per_second"] for record in records if record["what"] == "train"]
    keys = "step", "loss", "bleu", "length_accuracy"
    validations = [
        {key: record[key] for key in keys if key in record}
        for record in records
        if record["what"] == "valid"
    ]
    return {"tokens_per_second": median(found) if found else None, "validations": validations}


def score_system(place: Place, name: str, seed: int, console: Console) -> dict[str, Any]:
    """All that `oaxe evaluate` measures, on every test set; the outputs are files of their own."""
    recipe, language = place.recipe, read_manifest(place.data("raw")).target_language
    options = Options(
        lengths=recipe.lengths,
        examples=0,
        bf16=recipe.bf16,
        batch_tokens=recipe.batch_tokens,
        decoding={"beam": BEAM},
    )
    found = {}
    for test in place.tests():
        gold = read_references(multiref=place.gold / f"{test}.jsonl", language=language)
        model = f"{name}={place.run(name, seed)}"
        report, systems = evaluate(gold, [], [model], options, console)
        output = place.output(name, seed, test)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, "".join(f"{line}\n" for line in systems[0].scored))
        keys = "language", "unit", "sentences", "gold", "notes", "inputs"
        found[test] = report["systems"][name] | {key: report[key] for key in keys}
    return found
