"""What is missing, in the order in which it can be done: data, teacher, its text, systems."""

from collections.abc import Callable, Iterable
from functools import partial

from oaxe.support.jobs import Job
from reproduction.translation.place import Place
from reproduction.translation.systems import SYSTEMS, DataKind
from reproduction.translation.work import (
    prepare_distilled,
    prepare_raw,
    train_system,
    write_teacher_text,
)

Needs = frozenset[str]
NOTHING: Needs = frozenset()


class Plan:
    """The jobs of one data set. Every method returns the job that has to be waited for, if any.

    A system is done where its result is. Its run is needed only by systems that start from it and
    are not done; the teacher's only until its text is there.
    """

    def __init__(self, place: Place, per_device: int) -> None:
        self.place, self.per_device = place, per_device
        self.jobs: dict[str, Job] = {}

    def result(self, system: str, seed: int) -> Needs:
        if self.place.result(system, seed).exists():
            return NOTHING
        return self.train(system, seed)

    def run(self, system: str, seed: int) -> Needs:
        return NOTHING if self.place.has_run(system, seed) else self.train(system, seed)

    def train(self, system: str, seed: int) -> Needs:
        needs = self.data(SYSTEMS[system].data)
        if start := SYSTEMS[system].start:
            needs |= self.run(start, seed)
        work = partial(train_system, self.place, system, seed, self.per_device)
        return self.add(f"{system}-seed-{seed}", work, needs)

    def data(self, kind: DataKind) -> Needs:
        raw = NOTHING
        if not self.place.is_prepared("raw"):
            raw = self.add("data", partial(prepare_raw, self.place))
        if kind == "raw" or self.place.is_prepared("distilled"):
            return raw
        needs = raw | self.teacher_text()
        return self.add("distilled-data", partial(prepare_distilled, self.place), needs)

    def teacher_text(self) -> Needs:
        if self.place.has_teacher_text():
            return NOTHING
        needs = self.run("teacher", 1)
        work = partial(write_teacher_text, self.place, self.per_device)
        return self.add("teacher-text", work, needs)

    def add(self, name: str, work: Callable[..., object], needs: Needs = NOTHING) -> Needs:
        full = f"{self.place.dataset}/{self.place.preset}/{name}"
        if full not in self.jobs:
            self.jobs[full] = Job(full, work, self.place.log(name), needs)
        return frozenset({full})


def ancestors(systems: Iterable[str]) -> list[str]:
    """The systems, those that they start from, and the teacher of those that have one."""
    found: list[str] = []
    for name in systems:
        system = SYSTEMS[name]
        before = [system.start] if system.start else []
        before += ["teacher"] if system.data == "distilled" else []
        found += [*ancestors(before), name]
    return list(dict.fromkeys(found))
