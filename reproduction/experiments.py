"""What the paper trains for its section 4: on which data, with which system and loss, from what.

An experiment is trained once, and every table that shows it uses the same result. Its stage says
which line of the recipe (:mod:`reproduction.recipes`) tells how long, how fast and how large. A new
row takes one entry here and one in :mod:`reproduction.tables`.
"""

from dataclasses import replace
from typing import Any

from reproduction.best import BEST
from reproduction.equal_terms import EQUAL
from reproduction.experiment import MARGIN, RAW, DataKind, Experiment, fine_tuned, oaxe, on_raw
from reproduction.levers import LEVERS

MARGINS = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30)
SHARES = {"3": 1 / 30, "10": 1 / 10, "33": 1 / 3, "67": 2 / 3}  # of the updates of XE, by percent
STEADY = {"optim": {"decay": "inverse-sqrt"}}  # a rate that does not fall to zero


def margin_name(margin: float) -> str:
    """The experiment that is trained with this truncation."""
    names = {0.0: "oaxe-untruncated", MARGIN: "oaxe"}
    return names.get(margin, f"oaxe-truncation-{margin:.2f}")


# Trained on both kinds of data.
COMPARED = {
    "cmlm": Experiment("CMLM", "cmlm"),
    "xe": fine_tuned("CMLM + XE, as many updates", {"name": "xe"}),
    # With the inputs that AXE and OaXE have: nothing but masks.
    "xe-unobserved": fine_tuned(
        "CMLM + XE, as many updates, unobserved inputs", {"name": "xe"}, inputs="unobserved"
    ),
    "axe": fine_tuned("CMLM + AXE", {"name": "axe"}),
    "oaxe-untruncated": fine_tuned("CMLM + OaXE loss", oaxe(0.0)),
    "oaxe": fine_tuned("CMLM + OaXE", oaxe()),
}

# Other systems, with as many updates in all; on both kinds of data, too.
OTHERS = {
    "glat": Experiment("GLAT", "whole", system="glat"),
    "ctc": Experiment("CTC", "whole", system="ctc"),
    "crf": Experiment("Bigram CRF", "whole", system="crf"),
    "ngrams": fine_tuned("Bag-of-ngrams loss", {"name": "bag_of_ngrams", "n": 2, "xe": 0.1}),
    "flowseq": Experiment("FlowSeq", "whole", system="flowseq"),
    "imputer": Experiment("Imputer", "whole", system="imputer"),
    "lanmt": Experiment("LaNMT", "whole", system="lanmt"),
    "dslp": Experiment("CTC + DSLP", "whole", system="dslp"),
}
ODD = {"repeats": "forbid"}  # optimal de-duplication

# Beyond the paper: systems that sum over alignments or paths. They start from a Transformer.
LATTICES = {
    "ctc-glat": Experiment("CTC + GLAT", "equal", start="student", system="ctc_glat"),
    "dag": Experiment("DAG", "equal", start="student", system="dag"),
}
# Fine-tuned for bigrams; glancing as at the end of the training before.
LATTICES |= {
    f"{name}-ngrams": Experiment(
        f"{LATTICES[name].label} + bigrams",
        "ngrams",
        start=name,
        system=LATTICES[name].system,
        options={"objective": "ngrams", "start": share, "end": share},
    )
    for name, share in (("ctc-glat", 0.3), ("dag", 0.1))
}


def decoded(start: str, label: str, **decoding: Any) -> Experiment:
    """No training: what another experiment has trained, decoded in another way.

    Where a system chooses its decoding on validation, it chooses here, too.
    """
    one = (COMPARED | OTHERS | LATTICES)[start]
    return replace(
        one, label=f"{one.label}, {label}", stage="decoding", start=start, decoding=decoding
    )


def greedy(start: str, label: str, data: DataKind) -> Experiment:
    """An autoregressive model without a beam."""
    label, decoding = f"{label}, greedy", {"beam": 1}
    return Experiment(label, "decoding", data, start, "transformer", decoding=decoding)


DECODED = {
    "dag-greedy": decoded("dag", "greedy", method="greedy"),
    "dag-lookahead": decoded("dag", "lookahead", method="lookahead"),
    **{f"{name}-beam": decoded(name, "beam 20", method="beam") for name in LATTICES},
    **{
        f"{name}-beam-lm": decoded(name, "beam 20, 4-grams", method="beam", lm_weight=0.3)
        for name in LATTICES
    },
}


OTHERS["odd"] = replace(decoded("xe", "", **ODD), label="CMLM + XE + ODD")
OTHERS["lanmt-refined"] = decoded("lanmt", "refined once", refine_steps=2)
OTHERS["mask-predict"] = decoded("cmlm", "10 passes of mask-predict", refine_steps=10)
BOTH = COMPARED | OTHERS | LATTICES | DECODED  # kinds of data


EXPERIMENTS: dict[str, Experiment] = {
    "teacher": Experiment("Transformer", "teacher", "raw", system="transformer"),
    # The same, where students are smaller than the teacher: what they can start from.
    "student": Experiment(
        "Transformer of the students' size", "student", "raw", system="transformer"
    ),
    # Distilled, as in the work that argues for it: a fair opponent in speed.
    "at-12-1": Experiment("Transformer 12-1", "deep", system="transformer"),
    "teacher-greedy": greedy("teacher", "Transformer", "raw"),
    "student-greedy": greedy("student", "Transformer of the students' size", "raw"),
    "at-12-1-greedy": greedy("at-12-1", "Transformer 12-1", "distilled"),
    "lm": Experiment("language model", "lm", "raw", system="language_model"),
    **BOTH,
    "at-distilled": Experiment("Transformer + distillation", "student", system="transformer"),
    # References of three teachers.
    "ddrs": Experiment(
        "CTC + DDRS", "whole", system="ddrs", references=("distilled-2", "distilled-3")
    ),
    "em": replace(fine_tuned("EM+ODD", {"name": "xe"}), data="em", decoding=ODD),
    "hint": Experiment("Hint-based loss", "whole", system="hint", asks_teacher=True),
    **{name + RAW: on_raw(one) for name, one in BOTH.items()},
    # Without pre-training: as many updates in all as those that have it.
    "xe-whole": Experiment("XE throughout", "whole"),
    "axe-annealed": Experiment(
        "AXE, annealed", "whole", options={"loss": {"name": "axe"}, "annealing": True}
    ),
    "oaxe-annealed": Experiment(
        "OaXE, annealed", "whole", options={"loss": oaxe(), "annealing": True}
    ),
    # The same at a rate that stays high enough for what comes last.
    "axe-annealed-steady": Experiment(
        "AXE, annealed, steady rate", "whole", changes=STEADY,
        options={"loss": {"name": "axe"}, "annealing": True},
    ),
    "oaxe-annealed-steady": Experiment(
        "OaXE, annealed, steady rate", "whole", changes=STEADY,
        options={"loss": oaxe(), "annealing": True},
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
    **{
        f"oaxe-untruncated-{percent}-percent": fine_tuned(
            f"OaXE after {percent} %, not truncated", oaxe(0.0), f"cmlm-{percent}-percent"
        )
        for percent in SHARES
    },
    **EQUAL,
    **BEST,
    **LEVERS,
}  # fmt: skip


def with_ancestors(names: list[str]) -> list[str]:
    """The experiments, those that they start from, and those that have made their data."""
    found: list[str] = []
    for name in names:
        one = EXPERIMENTS[name]
        before = [one.start] if one.start else []
        if one.data != "raw":
            before += ["teacher", *(["cmlm"] if one.data == "em" else [])]
        found += [*with_ancestors(before), name]
    return list(dict.fromkeys(found))
