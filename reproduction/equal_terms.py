"""All systems on equal terms: docs/protocol.md as data.

Every system starts from the same Transformer, reads the same tokens in as many updates, at the same
rate, and has three trials of the setting that its paper calls decisive. Validation chooses one of
them on each data set and each kind of data; further seeds are trained of that one alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from reproduction.experiment import CHOSEN, RAW, Experiment, oaxe, on_raw

LAST = 0.2  # share of the updates that fine-tuned systems have with their own loss
FIRST = "equal-cmlm"  # what they have before


class Compared(NamedTuple):
    """A system, what its trials change, and whether there are any on raw data."""

    one: Experiment
    trials: Mapping[str, Mapping[str, Any]]  # of its options, by name
    has_raw: bool = True


def trained(label: str, system: str, **more: Any) -> Experiment:
    return Experiment(label, "equal", start="student", system=system, changes=CHOSEN, **more)


def tuned(label: str, **more: Any) -> Experiment:
    """A system that is fine-tuned after XE."""
    return Experiment(label, "equal-finetune", start=FIRST, share=LAST, changes=CHOSEN, **more)


def values(name: str, *tried: float) -> dict[str, dict[str, Any]]:
    """Trials of an option of the system."""
    return {f"{name.replace('_', '-')}-{value:g}": {name: value} for value in tried}


def losses(name: str, option: str, *tried: float) -> dict[str, dict[str, Any]]:
    """Trials of an option of a loss."""
    return {f"{option}-{v:g}": {"loss": {"name": name, option: v}} for v in tried}


GLANCING = {"start": 0.5, "end": 0.1}
# The first trial is what the paper has, or the default of the system.
SYSTEMS = {
    "xe": Compared(
        tuned("CMLM + XE", options={"inputs": "unobserved"}), values("label_smoothing", 0.1, 0, 0.2)
    ),
    "axe": Compared(tuned("CMLM + AXE"), losses("axe", "delta", 1, 2, 5)),
    "oaxe": Compared(
        tuned("CMLM + OaXE"),
        {f"truncation-{margin:g}": {"loss": oaxe(margin)} for margin in (0.15, 0.07, 0.03)},
    ),
    "ngrams": Compared(tuned("Bag-of-ngrams loss"), losses("bag_of_ngrams", "xe", 0.1, 0.3, 0.5)),
    "em": Compared(
        replace(tuned("EM+ODD"), data="em", decoding={"repeats": "forbid"}),
        values("label_smoothing", 0.1, 0, 0.2),
        has_raw=False,  # it is a way to distill
    ),
    "glat": Compared(
        trained("GLAT", "glat"), {"end-0.3": {}, "end-0.1": GLANCING, "start-0.7": {"start": 0.7}}
    ),
    "hint": Compared(
        trained("Hint-based loss", "hint", asks_teacher=True), values("states", 1, 0.3, 0.1)
    ),
    "crf": Compared(trained("Bigram CRF", "crf"), values("rank", 32, 16, 64)),
    "flowseq": Compared(trained("FlowSeq", "flowseq"), values("warmup", 0.3, 0.1, 0.6)),
    "lanmt": Compared(trained("LaNMT", "lanmt"), values("free_nats", 1, 0.5, 2)),
    "ctc": Compared(trained("CTC", "ctc"), values("upsample", 2, 3, 4)),
    "imputer": Compared(
        trained("Imputer", "imputer"),
        {"upsample-2": {}, "upsample-3": {"upsample": 3}, "shown-0.5": {"shown": 0.5}},
    ),
    "dslp": Compared(
        trained("CTC + DSLP", "dslp"),
        {"mixed-0.3": {}, "mixed-0": {"mixed": 0.0}, "upsample-3": {"upsample": 3}},
    ),
    "ddrs": Compared(
        trained("CTC + DDRS", "ddrs", references=("distilled-2", "distilled-3")),
        values("upsample", 2, 3, 4),
        has_raw=False,  # its references are those of several teachers
    ),
    "ctc-glat": Compared(
        trained("CTC + GLAT", "ctc_glat"),
        {"upsample-2": {}, "upsample-3": {"upsample": 3}, "end-0.1": GLANCING},
    ),
    "dag": Compared(
        trained("DAG", "dag"),
        {"vertices-4": {}, "vertices-8": {"vertices": 8}, "end-0.3": {"end": 0.3}},
    ),
}


def trials(name: str, raw: bool = False) -> tuple[str, ...]:
    """The experiments of a system, of which validation chooses one."""
    return tuple(f"equal-{name}-{trial}{RAW if raw else ''}" for trial in SYSTEMS[name].trials)


DISTILLED = {
    f"equal-{name}-{trial}": replace(
        one, label=f"{one.label}, {trial.replace('-', ' ')}", options={**one.options, **changed}
    )
    for name, (one, of_system, _) in SYSTEMS.items()
    for trial, changed in of_system.items()
}
NO_RAW = {trial for name, system in SYSTEMS.items() if not system.has_raw for trial in trials(name)}
DISTILLED[FIRST] = Experiment("CMLM", "equal", start="student", share=1 - LAST)
EQUAL = DISTILLED | {
    name + RAW: on_raw(one) for name, one in DISTILLED.items() if name not in NO_RAW
}
