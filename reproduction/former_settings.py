"""The settings of results from before systems had sections of their own.

The archives hold results as they were written. Their settings are compared with those of now under
the present names; no value changes.

    model.kind nat, at, lm                      model.system cmlm, transformer, language_model
    loss.name, truncation (OaXE), delta (AXE)   cmlm.loss
    loss.label_smoothing                        label_smoothing of the system
    loss.inputs, length_weight, annealing*      the same in cmlm
    validation.length_candidates, deduplicate,  decoding, as far as the system decodes with it
      beam, length_penalty
    decoding.deduplicate true, false            decoding.repeats merge, keep

What does not belong to the system is left out: it could be set, and had no effect.
"""

from collections.abc import Mapping
from typing import Any

SYSTEMS = {"nat": "cmlm", "at": "transformer", "lm": "language_model"}
OPTIONS = {
    "cmlm": {"label_smoothing", "inputs", "length_weight", "annealing", "annealing_c",
             "annealing_lambda"},
    "transformer": {"label_smoothing"},
    "language_model": {"label_smoothing"},
}  # fmt: skip
OF_LOSS = {"xe": {"name"}, "axe": {"name", "delta"}, "oaxe": {"name", "truncation"}}
DECODING = {
    "cmlm": {"length_candidates", "deduplicate", "length_penalty"},
    "transformer": {"beam", "length_penalty"},
    "language_model": set[str](),
}
ALL_DECODING = DECODING["cmlm"] | DECODING["transformer"]


def under_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the toolkit has them now; those that have present names already are returned."""
    found = _with_sections(settings) if "loss" in settings else dict(settings)
    decoding = dict(found.get("decoding", {}))
    if "deduplicate" in decoding:
        decoding["repeats"] = "merge" if decoding.pop("deduplicate") else "keep"
        found["decoding"] = decoding
    return found


def _with_sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    model, loss, validation = settings["model"], settings["loss"], settings["validation"]
    system = SYSTEMS[model["kind"]]
    options = {key: value for key, value in loss.items() if key in OPTIONS[system]}
    if system == "cmlm":
        of_loss = OF_LOSS[loss["name"]]
        options["loss"] = {key: value for key, value in loss.items() if key in of_loss}
    kept = {key: value for key, value in model.items() if key not in ("kind", "upsample")}
    return {
        **{key: value for key, value in settings.items() if key != "loss"},
        "model": {"system": system, **kept},
        system: options,
        "validation": {k: v for k, v in validation.items() if k not in ALL_DECODING},
        "decoding": {k: v for k, v in validation.items() if k in DECODING[system]},
    }
