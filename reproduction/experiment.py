"""What an experiment is: on which data, with which system and loss, from what, for how long."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# "distilled-2" and "distilled-3": by teachers of other seeds. "em": of each beam of the teacher,
# the hypothesis that the CMLM finds likeliest.
DataKind = Literal["raw", "distilled", "distilled-2", "distilled-3", "em"]
Stage = Literal[
    "teacher", "deep", "lm", "cmlm", "finetune", "whole", "student", "equal", "equal-finetune",
    "ngrams", "decoding",
]  # fmt: skip

RAW = "-raw"  # ends the names of experiments on raw data
AGAIN = "-again"  # ends the names of results that were trained again, to start others from
MARGIN = 0.15  # the paper's truncation
CHOSEN = {"validation": {"choose_decoding": True}}  # such as the length penalty
TEACHERS = ("teacher", "student")  # their seed 1 serves all seeds and both kinds of data


@dataclass(frozen=True)
class Experiment:
    label: str
    stage: Stage
    data: DataKind = "distilled"
    # The experiment that it takes its first weights from, with the same seed; but see TEACHERS.
    start: str | None = None
    system: str = "cmlm"  # as in `model.system`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the system, as in its section
    decoding: Mapping[str, Any] = field(default_factory=dict)  # as in the section `decoding`
    asks_teacher: bool = False  # the system has an option `teacher`
    references: tuple[DataKind, ...] = ()  # other targets of the same sources
    share: float = 1.0  # of the updates of its stage
    rate: float = 1.0  # of the learning rate of its stage
    tokens: float = 1.0  # of those of an update
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of other sections


def fine_tuned(label: str, loss: Mapping[str, Any], start: str = "cmlm", **more: Any) -> Experiment:
    return Experiment(label, "finetune", start=start, options={"loss": loss, **more})


def oaxe(truncation: float = MARGIN) -> dict[str, Any]:
    return {"name": "oaxe", "truncation": truncation}


def on_raw(one: Experiment) -> Experiment:
    start = one.start if one.start is None or one.start in TEACHERS else one.start + RAW
    return replace(one, data="raw", start=start)
