"""The stages of a build, each of them an ordinary command; finished ones are skipped.

OUT/plan.yaml       the options and the plan; made first, see oaxe.pipeline.plan
OUT/text/           without --valid: training text without the pairs that are held out, and these
OUT/data/           `oaxe prepare`
OUT/configs/        a configuration of each training, for `oaxe train`
OUT/teacher/        run of the autoregressive model
OUT/distilled/      with --distil: `oaxe distill`, and what is prepared of it: OUT/distilled-data
OUT/one-pass/       run of the one-pass model, which starts from the teacher
OUT/bigrams/        the same, fine-tuned
OUT/ngrams/         `oaxe ngrams`, for beam search
OUT/cpu/            the one-pass translator for a CPU, in 8 bits, where oaxe[cpu] is installed; CTC
                    with the n-grams
OUT/teacher-cpu/    the autoregressive one for CTranslate2, in 8 bits, where that is installed
OUT/report.json     scores and speed of all models on this machine; OUT/report.md in words
OUT/model/          the one-pass translator for torch, with a card: README.md
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from oaxe.decoding.exported import export
from oaxe.distillation.distill import distill
from oaxe.distillation.folder import file_names
from oaxe.pipeline import recipes
from oaxe.pipeline.card import write_card
from oaxe.pipeline.plan import (
    Asked,
    Plan,
    Training,
    doubts,
    find_plan,
    make_plan,
    plan_table,
    save_plan,
)
from oaxe.pipeline.report import TEACHER_FOR_CPU, best_beam, write_report
from oaxe.pipeline.survey import hold_out
from oaxe.support import strict_json
from oaxe.support.config import read
from oaxe.support.errors import UserError
from oaxe.support.extras import EXTRAS
from oaxe.support.files import write_whole
from oaxe.support.locks import locked
from oaxe.support.tables import TextTable
from oaxe.text.lines import Pair
from oaxe.text.manifest import MANIFEST, SPLITS, SUBWORDS
from oaxe.text.ngram_files import count_ngrams
from oaxe.text.prepare import prepare, suspicious
from oaxe.training.run import load_translator, train
from oaxe.training.settings import build_settings
from oaxe.training.trainer import INTERRUPTED

LONGER = 1.3  # times the minutes that are planned for a training: then it stops
SLOWER = 1.1  # times the seconds that an update was planned to take: then there are fewer
ORDER = 4  # of n-grams


class StoppedError(Exception):
    """The user stopped a stage, which is saved."""


@dataclass(frozen=True)
class Stage:
    name: str
    marker: Path  # exists as soon as the stage is done
    work: Callable[[], object]


class Build:
    """A build in its folder.

    Args:
        out: the folder, absolute, as it is written into configurations.
    """

    def __init__(self, out: Path, plan: Plan, console: Console) -> None:
        self.out, self.plan, self.asked, self.console = out, plan, plan.asked, console

    def stages(self) -> Iterator[Stage]:
        out = self.out
        if self.plan.held_out:
            # written last
            yield Stage("hold out", out / "text" / "train.source", self.hold_out)
        yield Stage("prepare", out / "data" / MANIFEST, lambda: self.prepare("data"))
        yield self._training("teacher", self.plan.teacher, recipes.teacher)
        if self.asked.distil:
            yield Stage("distil", out / "distilled" / MANIFEST, self.distil)
            marker = out / "distilled-data" / MANIFEST
            yield Stage("prepare distilled text", marker, lambda: self.prepare("distilled-data"))
        yield self._training("one-pass", self.plan.one_pass, recipes.one_pass, "teacher")
        if self.plan.bigrams.updates:
            yield self._training("bigrams", self.plan.bigrams, recipes.bigrams, "one-pass")
        yield Stage("n-grams", out / "ngrams" / "config.json", self.count_ngrams)
        if all(map(find_spec, EXTRAS["cpu"])):
            yield Stage("export", out / "cpu" / "config.json", self.export)
        yield Stage("report", out / "report.json", self.report)
        yield Stage("model", out / "model" / "README.md", self.save_model)

    def pair(self, split: str) -> Pair | None:
        if self.plan.held_out and split != "test":
            return self.out / "text" / f"{split}.source", self.out / "text" / f"{split}.target"
        return self.asked.pair(split)

    def hold_out(self) -> None:
        train = self.asked.pair("train")
        assert train
        hold_out(self.out / "text", train, self.plan.pairs)

    def prepare(self, name: str) -> None:
        asked, train = self.asked, self.pair("train")
        subwords: dict[str, Any] = {"vocab_size": self.plan.vocab_size}
        if name != "data":
            folder = self.out / "distilled"
            names = file_names(load_translator(str(self.out / "teacher"), "cpu"))
            train = folder / names[0], folder / names[1]
            subwords = {"subwords": folder / SUBWORDS}
        elif {asked.source_language[:2], asked.target_language[:2]} & {"zh", "ja"}:
            subwords["character_coverage"] = 0.9995  # of thousands of characters
        assert train
        prepare(
            self.out / name,
            source_language=asked.source_language,
            target_language=asked.target_language,
            train=train,
            valid=self.pair("valid"),
            test=self.pair("test"),
            console=self.console,
            **subwords,
        )

    def distil(self) -> None:
        train = self.pair("train")
        assert train
        finished = distill(
            self.out / "distilled",
            teacher=str(self.out / "teacher"),
            source=train[0],
            languages=(self.asked.source_language, self.asked.target_language),
            device=self.asked.device,
            console=self.console,
        )
        if not finished:
            raise StoppedError

    def _training(
        self, name: str, training: Training, recipe: Callable[..., dict[str, Any]], start: str = ""
    ) -> Stage:
        system = (self.asked.system,) * bool(start)
        if start:
            training = self.paced(training)
        content = recipe(self.plan.machine, training.updates, *system)
        data = "distilled-data" if self.asked.distil and start else "data"
        content["run"] = str(self.out / name)
        content["data"] |= {"folder": str(self.out / data), "update_tokens": training.update_tokens}
        content["train"]["minutes"] = round(LONGER * training.minutes + 0.1, 2)
        if start:
            content["train"]["init_from"] = str(self.out / start)
        marker = self.out / name / "result.json"
        return Stage(name, marker, lambda: self.train(name, content))

    def paced(self, training: Training) -> Training:
        """Fewer updates, if the teacher's took longer than planned: the machine is busier now.

        The rate of learning falls to zero with the last update, so that must not come too late.
        """
        path = self.out / "teacher" / "result.json"
        if not path.exists():  # the stages are only listed
            return training
        done = strict_json.read(path)
        pace = done["seconds"] / max(done["step"], 1) / self.plan.teacher.seconds
        if pace < SLOWER:
            return training
        updates = max(1, int(training.updates / pace))
        return Training(updates, training.update_tokens, training.seconds * pace)

    def train(self, name: str, content: dict[str, Any]) -> None:
        path = self.out / "configs" / f"{name}.yaml"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            text = yaml.safe_dump(content, sort_keys=False)
            write_whole(path, f"# oaxe train {path}\n{text}")
        settings = build_settings(read(path), str(path))
        if train(settings, self.console)["stopped"] == INTERRUPTED:
            raise StoppedError

    def count_ngrams(self) -> None:
        limits = [0, 0, 0, 1] if self.plan.pairs > 1_000_000 else []
        count_ngrams(self.out / "data", self.out / "ngrams", ORDER, limits)

    @property
    def finished(self) -> Path:
        """The run of the one-pass model that is better on validation text."""
        runs = [self.out / "one-pass", self.out / "bigrams"][: 1 + bool(self.plan.bigrams.updates)]
        bleu = {run: strict_json.read(run / "result.json")["bleu"] for run in runs}
        return max(runs, key=lambda run: bleu[run])

    def report(self) -> None:
        write_report(self.out, self.finished, self.plan, self.console)

    def save_model(self) -> None:
        """The folder has another name until our card has replaced that of ``save_pretrained``."""
        model, part = self.out / "model", self.out / "model.part"
        for unfinished in (model, part):
            shutil.rmtree(unfinished, ignore_errors=True)
        load_translator(str(self.finished), "cpu").save_pretrained(part)
        write_card(self.out, part, self.plan, tuned=self.finished.name == "bigrams")
        part.replace(model)

    def export(self) -> None:
        """int8 models for a CPU, if they can be made here; a build is whole without them."""
        for name in ("cpu", TEACHER_FOR_CPU):  # of an export that was killed
            shutil.rmtree(self.out / name, ignore_errors=True)
        if all(map(find_spec, EXTRAS["ctranslate2"])):
            teacher = load_translator(str(self.out / "teacher"), "cpu")
            export(teacher, self.out / TEACHER_FOR_CPU, int8=True, format="ctranslate2")
        try:
            translator = load_translator(str(self.finished), "cpu")
            translator.change_decoding(**best_beam(translator, self.finished, self.out))
            export(translator, self.out / "cpu", int8=True)
        except UserError as error:
            self.console.print(f"no model for a CPU: {error}")


def build(out: Path, asked: Asked, console: Console, *, dry_run: bool = False) -> bool:
    """Make, or go on with, what was asked for; False if it was interrupted.

    Args:
        out: folder to make, see :mod:`oaxe.pipeline.stages`.
        asked: see :func:`oaxe.pipeline.plan.ask`.
        dry_run: only show the plan; nothing is written.
    """
    plan, is_new = find_plan(out, asked), False
    if plan is None:
        given = {split: pair for split in SPLITS if (pair := asked.pair(split))}
        for warning in suspicious(asked.source_language, asked.target_language, given):
            console.print(f"warning: {warning}", soft_wrap=True)
        console.print("measuring how long an update takes")
        plan, is_new = make_plan(asked), True
    show(plan_table(plan), console)
    if doubt := doubts(plan):
        console.print(doubt, soft_wrap=True)
    if dry_run:
        return True
    with locked(out, "building"):
        if is_new:
            save_plan(out, plan)
        try:
            for stage in Build(out.resolve(), plan, console).stages():
                done = stage.marker.exists()
                console.print(f"{stage.name}: done" if done else f"{stage.name}:", style="bold")
                if not done:
                    stage.work()
        except StoppedError:
            return False
    text = (out / "report.md").read_text(encoding="utf-8")
    console.print(text, soft_wrap=True)
    return True


def show(table: TextTable, console: Console) -> None:
    console.print(table.title)
    shown = Table(*table.head, box=None)
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
