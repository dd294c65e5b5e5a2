"""What is missing, in the order in which it can be done: data, teacher, its text, experiments."""

from collections.abc import Callable
from functools import partial

from oaxe.text.manifest import MANIFEST
from reproduction.experiment import DataKind
from reproduction.experiments import EXPERIMENTS
from reproduction.folder import teacher_of
from reproduction.jobs import Job
from reproduction.steps import (
    JUDGE,
    Study,
    prepare_distilled,
    prepare_raw,
    train_and_test,
    write_ngrams,
    write_text,
)

Needs = frozenset[str]
NOTHING: Needs = frozenset()
STUDENTS = ("student", "student-greedy")  # what the teacher is where students are as large


class Plan:
    """The jobs of one data set. Every method returns the jobs that have to be waited for.

    An experiment is done where its result is. Its run is needed only by experiments that start from
    it and are not done; the teacher's run only until its text is there, or by those that ask it.
    """

    def __init__(self, study: Study, per_device: int) -> None:
        self.study, self.folder, self.per_device = study, study.folder, per_device
        self.jobs: dict[str, Job] = {}

    def result(self, name: str, seed: int) -> Needs:
        done = self.folder.result(name, seed).exists()
        return NOTHING if done else self.train(name, seed)

    def run(self, name: str, seed: int) -> Needs:
        return NOTHING if self.folder.has_run(name, seed) else self.train(name, seed)

    def train(self, name: str, seed: int) -> Needs:
        if name in STUDENTS and self.study.start_from_teacher:
            return NOTHING  # the teacher is of that size
        needs = self.data(EXPERIMENTS[name].data)
        for kind in EXPERIMENTS[name].references:
            needs |= self.data(kind)
        if start := self.study.start(name, seed):
            needs |= self.run(*start)
        if "lm_weight" in EXPERIMENTS[name].decoding:
            needs |= self.ngrams()
        if EXPERIMENTS[name].asks_teacher:
            needs |= self.run("teacher", 1)
        work = partial(train_and_test, self.study, name, seed, self.per_device)
        return self.add(f"{name}-seed-{seed}", work, needs)

    def data(self, kind: DataKind) -> Needs:
        raw = NOTHING
        if not self.folder.is_prepared("raw"):
            raw = self.add("data", partial(prepare_raw, self.study))
        if kind == "raw" or self.folder.is_prepared(kind):
            return raw
        needs = raw | self.text(kind)
        return self.add(f"{kind}-data", partial(prepare_distilled, self.study, kind), needs)

    def ngrams(self) -> Needs:
        if self.folder.ngrams.exists():
            return NOTHING
        return self.add("ngrams", partial(write_ngrams, self.study), self.data("raw"))

    def text(self, kind: DataKind) -> Needs:
        if (self.folder.text(kind) / MANIFEST).exists():
            return NOTHING
        needs = self.run("teacher", teacher_of(kind)[0])
        if kind == "em":
            needs |= self.run(JUDGE, 1)
        work = partial(write_text, self.study, kind)
        return self.add(self.folder.text(kind).name, work, needs)

    def add(self, name: str, work: Callable[..., object], needs: Needs = NOTHING) -> Needs:
        full = f"{self.folder.dataset}/{self.folder.preset}/{name}"
        if full not in self.jobs:
            self.jobs[full] = Job(full, work, self.folder.log(name), needs)
        return frozenset({full})
