"""OaXE at its best: one change a row, in the order in which they are to be tried, with one seed.

Updates, rates and tokens are factors of those of the recipe: on Europarl, fine-tuning has 600
updates of 32K tokens at 2e-4, and the slow one 3,000 of 65K at 5e-5.
"""

from dataclasses import replace
from typing import Any

from reproduction.experiment import CHOSEN, Experiment, fine_tuned, oaxe

MARGINS = (0.03, 0.05, 0.07, 0.10)
SLOW: dict[str, Any] = {"share": 5.0, "rate": 0.25, "tokens": 2.0}


def first(label: str, **more: Any) -> Experiment:
    """XE, or what takes its place, from the teacher."""
    return Experiment(label, "cmlm", start="student", **more)


def then(label: str, start: str = "best-cmlm", **more: Any) -> Experiment:
    options = {"loss": oaxe(), **more.pop("options", {})}
    return Experiment(label, "finetune", start=start, options=options, **more)


BEST = {
    "best-cmlm": first("XE from the teacher"),
    "best-oaxe": then("OaXE after it"),
    "best-cmlm-long": first("XE from the teacher, twice as long", share=2.0),
    "best-long": then("OaXE after it, longer XE", "best-cmlm-long"),
    "best-slow": then("OaXE, more and slower updates", **SLOW),
    "best-fading": then(
        "OaXE, XE fades out", options={"annealing": True, "annealing_lambda": 0.5}
    ),
    **{
        f"best-kept-{kept:g}": then(f"OaXE, {kept:.0%} of XE kept", options={"xe_weight": kept})
        for kept in (0.05, 0.1)
    },
    **{
        f"best-truncation-{margin:g}": then(
            f"OaXE, truncation {margin:.2f}", options={"loss": oaxe(margin)}
        )
        for margin in MARGINS
    },
    "best-ema": then("OaXE, EMA", changes={"train": {"ema": 0.99}}),
    "best-unsmoothed": then("OaXE, no label smoothing", options={"label_smoothing": 0.0}),
    "best-cmlm-both": first(
        "XE, positions from both ends", changes={"model": {"positions": "both"}}
    ),
    "best-both": then(
        "OaXE, positions from both ends", "best-cmlm-both",
        changes={"model": {"positions": "both"}},
    ),
    "best-glat": first("GLAT from the teacher", system="glat"),
    "best-after-glat": then("OaXE after glancing", "best-glat"),
    "best-bigrams": replace(
        fine_tuned("OaXE of bigrams", {"name": "ngram_oaxe", "n": 2, "truncation": 0.15}),
        start="best-cmlm",
    ),
}  # fmt: skip
BEST |= {
    "best-penalty": replace(
        BEST["best-oaxe"], label="OaXE, length penalty chosen on validation", stage="decoding",
        start="best-oaxe", changes=CHOSEN,
    ),
    "best-merged": replace(
        BEST["best-oaxe"], label="OaXE, lengths compared after merging repeats", stage="decoding",
        start="best-oaxe", decoding={"score_merged": True},
    ),
}  # fmt: skip
