"""What costs nothing when translating: CTC with glancing, one change a row, on raw data.

It begins with what it is on equal terms, and has that budget.
"""

from typing import Any

from reproduction.experiment import Experiment

BASE = "equal-ctc-glat-upsample-2-raw"
NO_GLANCING = "equal-ctc-upsample-2-raw"


def changed(label: str, **more: Any) -> Experiment:
    start = more.pop("start", "student")
    return Experiment(label, "equal", "raw", start=start, system="ctc_glat", **more)


def fine_tuned(label: str, objective: str) -> Experiment:
    options = {"objective": objective, "start": 0.3, "end": 0.3}  # glancing as it was at the end
    return Experiment(label, "ngrams", "raw", start=BASE, system="ctc_glat", options=options)


def decoded(label: str, **decoding: Any) -> Experiment:
    return Experiment(label, "decoding", "raw", start=BASE, system="ctc_glat", decoding=decoding)


LEVERS = {
    "levers-random-start": changed("from random weights", start=None),
    "levers-no-ema": changed("without EMA", changes={"train": {"ema": 0.0}}),
    "levers-weak-decoder": changed(
        "with a weak autoregressive decoder", options={"weak_decoder": 0.5}
    ),
    "levers-consistency": changed("two views of dropout that agree", options={"consistency": 0.2}),
    "levers-bigrams": fine_tuned("then bigrams", "ngrams"),
    "levers-coco": fine_tuned("then words in any order (CoCO)", "coco"),
    "levers-samples": decoded("the sample most like the others", method="samples"),
    "levers-beam": decoded("beam 20", method="beam"),
    "levers-ngrams": decoded("beam 20, 4-grams", method="beam", lm_weight=0.3),
}
