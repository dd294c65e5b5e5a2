"""The systems of the paper's section 4: what each is trained on, with, and from.

A system is trained once and used by every table that shows it. How long, how fast and how large is
the recipe's business (:mod:`reproduction.translation.recipe`), by the stage of a system.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

DataKind = Literal["raw", "distilled"]
Stage = Literal["teacher", "deep", "lm", "cmlm", "finetune", "whole"]

RAW = "-raw"  # ends the names of systems that are trained on people's translations
MARGIN = 0.15  # the paper's truncation
MARGINS = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30)
SHARES = {"3": 1 / 30, "10": 1 / 10, "33": 1 / 3, "67": 2 / 3}  # of XE's updates, by percent


@dataclass(frozen=True)
class System:
    label: str
    stage: Stage
    data: DataKind = "distilled"
    start: str | None = None  # the system whose weights it begins with, of the same seed
    loss: Mapping[str, Any] = field(default_factory=dict)  # settings of the section `loss`
    share: float = 1.0  # of the updates of its stage


def fine_tuned(label: str, loss: str, start: str = "cmlm", **settings: Any) -> System:
    return System(label, "finetune", start=start, loss={"name": loss, **settings})


def margin_name(margin: float) -> str:
    """The system that is trained with this truncation."""
    names = {0.0: "oaxe-untruncated", MARGIN: "oaxe"}
    return names.get(margin, f"oaxe-truncation-{margin:.2f}")


# Systems that are trained on both kinds of data.
COMPARED = {
    "cmlm": System("CMLM", "cmlm"),
    "xe": fine_tuned("CMLM + XE, as many updates", "xe"),
    "axe": fine_tuned("CMLM + AXE", "axe"),
    "oaxe-untruncated": fine_tuned("CMLM + OaXE loss", "oaxe"),
    "oaxe": fine_tuned("CMLM + OaXE", "oaxe", truncation=MARGIN),
}

SYSTEMS: dict[str, System] = {
    "teacher": System("Transformer", "teacher", "raw"),
    # Distilled as in the work that argues for it: a fair opponent in speed.
    "at-12-1": System("Transformer 12-1", "deep"),
    "lm": System("language model", "lm", "raw"),
    **COMPARED,
    **{
        name + RAW: replace(system, data="raw", start=system.start and system.start + RAW)
        for name, system in COMPARED.items()
    },
    # Without pre-training: as many updates in all as those that have it.
    "xe-whole": System("XE throughout", "whole"),
    "axe-annealed": System("AXE, annealed", "whole", loss={"name": "axe", "annealing": True}),
    "oaxe-annealed": System(
        "OaXE, annealed", "whole", loss={"name": "oaxe", "annealing": True, "truncation": MARGIN}
    ),
    # No truncation: of random weights it would drop every token, and nothing could be learned.
    "oaxe-scratch": System("OaXE from random weights", "whole", loss={"name": "oaxe"}),
    **{
        margin_name(margin): fine_tuned(f"OaXE, truncation {margin:.2f}", "oaxe", truncation=margin)
        for margin in MARGINS
        if margin not in (0.0, MARGIN)
    },
    **{
        f"oaxe-{inputs}": fine_tuned(f"OaXE, {inputs}", "oaxe", truncation=MARGIN, inputs=inputs)
        for inputs in ("partial-all", "partial-masks")
    },
    **{
        f"cmlm-{percent}-percent": System(f"CMLM, {percent} %", "cmlm", share=share)
        for percent, share in SHARES.items()
    },
    **{
        f"oaxe-{percent}-percent": fine_tuned(
            f"OaXE after {percent} %", "oaxe", f"cmlm-{percent}-percent", truncation=MARGIN
        )
        for percent in SHARES
    },
}
