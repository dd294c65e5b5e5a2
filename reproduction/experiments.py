"""What the paper trains for its section 4: on which data, with which system and loss, from what.

An experiment is trained once, and every table that shows it uses the same result. Its stage says
which line of the recipe (:mod:`reproduction.recipes`) tells how long, how fast and how large. A new
row takes one entry here and one in :mod:`reproduction.tables`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

DataKind = Literal["raw", "distilled"]
Stage = Literal["teacher", "deep", "lm", "cmlm", "finetune", "whole"]

RAW = "-raw"  # ends the names of experiments on raw data
MARGIN = 0.15  # the paper's truncation
MARGINS = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30)
SHARES = {"3": 1 / 30, "10": 1 / 10, "33": 1 / 3, "67": 2 / 3}  # of the updates of XE, by percent


@dataclass(frozen=True)
class Experiment:
    label: str
    stage: Stage
    data: DataKind = "distilled"
    start: str | None = None  # the experiment whose weights it begins with, of the same seed
    system: str = "cmlm"  # as in `model.system`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the system, as in its section
    share: float = 1.0  # of the updates of its stage


def fine_tuned(label: str, loss: Mapping[str, Any], start: str = "cmlm", **more: Any) -> Experiment:
    return Experiment(label, "finetune", start=start, options={"loss": loss, **more})


def oaxe(truncation: float = MARGIN) -> dict[str, Any]:
    return {"name": "oaxe", "truncation": truncation}


def margin_name(margin: float) -> str:
    """The experiment that is trained with this truncation."""
    names = {0.0: "oaxe-untruncated", MARGIN: "oaxe"}
    return names.get(margin, f"oaxe-truncation-{margin:.2f}")


# Trained on both kinds of data.
COMPARED = {
    "cmlm": Experiment("CMLM", "cmlm"),
    "xe": fine_tuned("CMLM + XE, as many updates", {"name": "xe"}),
    "axe": fine_tuned("CMLM + AXE", {"name": "axe"}),
    "oaxe-untruncated": fine_tuned("CMLM + OaXE loss", oaxe(0.0)),
    "oaxe": fine_tuned("CMLM + OaXE", oaxe()),
}

# Other systems, with as many updates in all; on both kinds of data, too.
OTHERS = {
    "glat": Experiment("GLAT", "whole", system="glat"),
    "ctc": Experiment("CTC", "whole", system="ctc"),
    "flowseq": Experiment("FlowSeq", "whole", system="flowseq"),
    "imputer": Experiment("Imputer", "whole", system="imputer"),
}

EXPERIMENTS: dict[str, Experiment] = {
    "teacher": Experiment("Transformer", "teacher", "raw", system="transformer"),
    # Distilled, as in the work that argues for it: a fair opponent in speed.
    "at-12-1": Experiment("Transformer 12-1", "deep", system="transformer"),
    "lm": Experiment("language model", "lm", "raw", system="language_model"),
    **COMPARED,
    **OTHERS,
    **{
        name + RAW: replace(one, data="raw", start=one.start and one.start + RAW)
        for name, one in (COMPARED | OTHERS).items()
    },
    # Without pre-training: as many updates in all as those that have it.
    "xe-whole": Experiment("XE throughout", "whole"),
    "axe-annealed": Experiment(
        "AXE, annealed", "whole", options={"loss": {"name": "axe"}, "annealing": True}
    ),
    "oaxe-annealed": Experiment(
        "OaXE, annealed", "whole", options={"loss": oaxe(), "annealing": True}
    ),
    # Truncation would drop every token of random weights, and nothing could be learned.
    "oaxe-scratch": Experiment("OaXE from random weights", "whole", options={"loss": oaxe(0.0)}),
    **{
        margin_name(margin): fine_tuned(f"OaXE, truncation {margin:.2f}", oaxe(margin))
        for margin in MARGINS
        if margin not in (0.0, MARGIN)
    },
    **{
        f"oaxe-{inputs}": fine_tuned(f"OaXE, {inputs}", oaxe(), inputs=inputs)
        for inputs in ("partial-all", "partial-masks")
    },
    **{
        f"cmlm-{percent}-percent": Experiment(f"CMLM, {percent} %", "cmlm", share=share)
        for percent, share in SHARES.items()
    },
    **{
        f"oaxe-{percent}-percent": fine_tuned(
            f"OaXE after {percent} %", oaxe(), f"cmlm-{percent}-percent"
        )
        for percent in SHARES
    },
}


def with_ancestors(names: list[str]) -> list[str]:
    """The experiments, those that they start from, and the teacher of distilled data."""
    found: list[str] = []
    for name in names:
        one = EXPERIMENTS[name]
        before = [one.start] if one.start else []
        before += ["teacher"] if one.data == "distilled" else []
        found += [*with_ancestors(before), name]
    return list(dict.fromkeys(found))
