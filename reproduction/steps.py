"""What the processes do: prepare, distill, train and test. Each leaves all of it or nothing."""

import inspect
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from oaxe.criteria import CRITERIA
from oaxe.decoding.translator import Option
from oaxe.distillation.distill import distill
from oaxe.evaluation.evaluate import Options, evaluate
from oaxe.evaluation.references import References, read_references
from oaxe.support.errors import UserError
from oaxe.systems import find as find_system
from oaxe.text.datasets.catalogue import find
from oaxe.text.datasets.dataset import Dataset, dataset
from oaxe.text.lines import Pair, read_pairs, write_lines
from oaxe.text.manifest import SUBWORDS, read_manifest
from oaxe.text.ngram_files import count_ngrams
from oaxe.text.prepare import prepare
from oaxe.training.run import load_translator, train
from oaxe.training.settings import Settings
from oaxe.training.trainer import BEST, CHECKPOINTS, INTERRUPTED
from oaxe.training.validation import Validation, choose_decoding
from reproduction.experiment import AGAIN, TEACHERS, DataKind, Experiment
from reproduction.experiments import EXPERIMENTS
from reproduction.folder import RESULT, Folder, metrics, read_json, teacher_of, validations
from reproduction.jobs import StoppedError
from reproduction.recipes import Recipe

BEAM = 5
ORDER = 4  # of n-grams
JUDGE, JUDGED = "cmlm", 20  # the model that chooses, and the number of hypotheses
# Test sets of other domains, and the names of their data sets.
OTT, NEWS = ("ott2018", "ott2018-en-de"), ("newstest2014", "newstest-en-de")


@dataclass(frozen=True)
class Study:
    """One data set with one preset: where its work lies, and how its experiments are trained."""

    folder: Folder
    recipe: Recipe
    sets: Path  # the folder of data sets

    @property
    def start_from_teacher(self) -> bool:
        """Students are as large as the teacher: no other Transformer is needed to start from."""
        return self.recipe.size == self.recipe.teacher

    def start(self, name: str, seed: int) -> tuple[str, int] | None:
        """The experiment and seed that this one takes its first weights from."""
        start = EXPERIMENTS[name].start
        if start == "student" and self.start_from_teacher:
            start = "teacher"
        return None if start is None else (start, 1 if start in TEACHERS else seed)

    def settings(self, name: str, seed: int) -> Settings:
        one, start = EXPERIMENTS[name], self.start(name, seed)
        if one.stage == "decoding":
            assert start is not None
            trained = self.settings(*start)
            return replace(
                trained,
                decoding=replace(trained.decoding, **one.decoding),
                validation=replace(trained.validation, **one.changes.get("validation", {})),
            )
        if one.asks_teacher:
            teacher = str(self.folder.run("teacher", 1))
            one = replace(one, options={**one.options, "teacher": teacher})
        return self.recipe.settings(
            one,
            run=str(self.folder.run(name, seed)),
            data=str(self.folder.data(one.data)),
            references=[str(self.folder.data(kind)) for kind in one.references],
            seed=seed,
            init_from=None if start is None else str(self.folder.run(*start)),
        )

    def trained(self, name: str, seed: int) -> tuple[str, int]:
        """The experiment and seed itself, or the one that it decodes."""
        start = self.start(name, seed)
        return start if start and EXPERIMENTS[name].stage == "decoding" else (name, seed)

    def trained_run(self, name: str, seed: int) -> Path:
        return self.folder.run(*self.trained(name, seed))

    def differences(self, name: str, seed: int) -> list[str]:
        return self.folder.differences(name, seed, lambda: self.settings(name, seed))


def prepare_raw(study: Study, console: Console) -> None:
    """The raw data, and the test sets."""
    found = training_set(study, console)
    assert found.train is not None
    folder, recipe = study.folder, study.recipe
    text = folder.data("text")
    prepare(
        folder.data("raw"),
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
    folder.gold.mkdir(parents=True, exist_ok=True)
    for name, gold in held_out_sets(study, found):  # "test" comes last: then all are there
        entries = zip(gold.sources or (), gold.texts, strict=True)
        lines = [json.dumps({"src": s, "refs": r}, ensure_ascii=False) for s, r in entries]
        write_lines(folder.gold / f"{name}.jsonl", lines[: recipe.held_out])


def training_set(study: Study, console: Console) -> Dataset:
    found = dataset(study.folder.dataset, study.sets, console)
    if found.train is None or found.valid is None:
        raise UserError(f"{study.folder.dataset} is for evaluation: it has nothing to train on")
    return found


def beginning(pair: Pair, count: int | None, stem: Path) -> Pair:
    """The first pairs in files of their own, or the files themselves."""
    if count is None:
        return pair
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = stem.with_suffix(".source"), stem.with_suffix(".target")
    for path, lines in zip(paths, zip(*islice(read_pairs(*pair), count), strict=True), strict=True):
        write_lines(path, lines)
    return paths


def held_out_sets(study: Study, found: Dataset) -> Iterator[tuple[str, References]]:
    """Test sets: with several references and of other domains, where there are any."""
    languages = found.source_language, found.target_language
    name, turned = find(study.folder.dataset)
    several = [path for path in found.others if path.suffix == ".jsonl"]
    if several and not turned:
        yield "multiref", read_references(multiref=several[0], language=languages[1])
    if languages == ("en", "de") and (study.sets / OTT[1]).is_dir():
        ott = dataset(OTT[1], study.sets)
        references = [ott.test[1], *ott.others]
        yield OTT[0], read_references(references=references, source=ott.test[0], language="de")
    if name == "europarl-en-de" and (study.sets / NEWS[1]).is_dir():
        source, target = dataset("newstest-" + "-".join(languages), study.sets).test
        yield NEWS[0], read_references(references=[target], source=source, language=languages[1])
    yield "test", read_references(data=study.folder.data("raw"))


def write_text(study: Study, kind: DataKind, console: Console) -> None:
    """The teacher's translations, or those of its hypotheses that the judge finds likeliest."""
    folder = study.folder
    source = Path(read_manifest(folder.data("raw")).splits["train"].files[0])
    finished = distill(
        folder.text(kind),
        teacher=str(folder.run("teacher", teacher_of(kind)[0])),
        source=source,
        beam=JUDGED if kind == "em" else BEAM,
        judge=str(folder.run(JUDGE, 1)) if kind == "em" else None,
        batch_tokens=4 * study.recipe.batch_tokens,  # without gradients there is room for more
        bf16=study.recipe.bf16,
        console=console,
    )
    if not finished:
        raise StoppedError


def prepare_distilled(study: Study, kind: DataKind, console: Console) -> None:
    """The teacher's text to train on. Validation and test sets stay raw, subwords the same."""
    folder = study.folder
    raw = read_manifest(folder.data("raw"))
    source, target = raw.source_language, raw.target_language
    valid, test = ((Path(a), Path(b)) for a, b in (raw.splits[s].files for s in ("valid", "test")))
    prepare(
        folder.data(kind),
        source_language=source,
        target_language=target,
        train=(folder.text(kind) / f"train.{source}", folder.text(kind) / f"train.{target}"),
        valid=valid,
        test=test,
        subwords=folder.data("raw") / SUBWORDS,
        max_length=study.recipe.max_length,
        console=console,
    )


def write_ngrams(study: Study, console: Console) -> None:
    count_ngrams(study.folder.data("raw"), study.folder.ngrams, ORDER)


def train_and_test(study: Study, name: str, seed: int, jobs: int, console: Console) -> None:
    """Train, or resume, and test; only the model of the run is kept."""
    folder, run = study.folder, study.trained_run(name, seed)
    is_trained = folder.has_run(*study.trained(name, seed))
    if is_trained:
        trained = read_json(run / RESULT)
    else:
        trained = train(study.settings(name, seed), console)
        if trained["stopped"] == INTERRUPTED:
            raise StoppedError
    if not (is_trained and folder.result(name, seed).exists()):
        one, start = EXPERIMENTS[name], study.start(name, seed)
        saved = name + AGAIN * folder.result(name, seed).exists()
        decoding: dict[str, Option] = {}
        if one.stage == "decoding":
            decoding, tried = chosen_decoding(study, name, seed)
            trained |= tried
        elif one.system == "transformer":
            decoding = {"beam": BEAM}
        speeds = [entry["tokens_per_second"] for entry in metrics(run) if entry["what"] == "train"]
        folder.write_result(
            saved,
            seed,
            study.settings(name, seed),
            label=one.label,
            trained_on=one.data,
            recipe=asdict(study.recipe),
            lines=lines_of_code(one),
            training={
                **trained,
                "started_from": start and read_json(folder.run(*start) / RESULT),
                "processes_on_device": jobs,
                "tokens_per_second": median(speeds) if speeds else None,
                "validations": validations(run, "step", "loss", "bleu", "length_accuracy"),
            },
            tests={} if one.stage == "lm" else scores(study, name, saved, seed, decoding, console),
        )
    for states in (CHECKPOINTS, BEST):  # ten times the model, and there are dozens of experiments
        shutil.rmtree(run / states, ignore_errors=True)


def lines_of_code(one: Experiment) -> int:
    """Lines of the file of the system and, if it has one, of the loss."""
    loss = one.options.get("loss")
    sources = [find_system(one.system).__file__]
    sources += [inspect.getfile(CRITERIA[loss["name"]])] if loss else []
    return sum(len(Path(str(path)).read_text().splitlines()) for path in sources)


def chosen_decoding(study: Study, name: str, seed: int) -> tuple[dict[str, Option], dict[str, Any]]:
    """How a trained model is to decode, by validation; and what that was like there."""
    translator = load_translator(str(study.trained_run(name, seed)), None)
    options = dict(EXPERIMENTS[name].decoding)
    if "lm_weight" in options:
        options["lm"] = str(study.folder.ngrams)
    translator.change_decoding(**options)
    settings = study.settings(name, seed)
    validation = Validation.of(translator, study.folder.data("raw"), settings)
    wanted = settings.validation.choose_decoding
    chooses = translator.system.chooses_decoding if wanted is None else wanted
    tried = choose_decoding(translator, validation) if chooses else []
    bleu = tried[0]["bleu"] if tried else validation.score()
    return dict(translator.decoding), {"bleu": bleu, "decodings": tried}


def scores(
    study: Study, name: str, saved: str, seed: int, decoding: Mapping[str, Option], console: Console
) -> dict[str, Any]:
    """All that `oaxe evaluate` measures, on every test set.

    The outputs are files of their own, with the result that has the name ``saved``.
    """
    folder, recipe = study.folder, study.recipe
    language = read_manifest(folder.data("raw")).target_language
    options = Options(
        lengths=recipe.lengths,
        examples=0,
        bf16=recipe.bf16,
        batch_tokens=recipe.batch_tokens,
        decoding=decoding,
    )
    found = {}
    for test in folder.tests():
        gold = read_references(multiref=folder.gold / f"{test}.jsonl", language=language)
        model = f"{name}={study.trained_run(name, seed)}"
        report, systems = evaluate(gold, [], [model], options, console)
        output = folder.output(saved, seed, test)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_lines(output, systems[0].scored)
        keys = "language", "unit", "sentences", "gold", "notes", "inputs"
        found[test] = report["systems"][name] | {key: report[key] for key in keys}
    return found
