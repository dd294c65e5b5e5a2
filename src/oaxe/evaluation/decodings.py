"""How models were decoded, in words."""

from collections.abc import Callable, Mapping
from typing import Any

from oaxe.decoding.translator import OPTIONS, Option

WORDS: dict[str, Callable[[Option], str]] = {
    "beam": lambda n: f"beam {n}" + " (greedy)" * (n == 1),
    "length_penalty": "length penalty {}".format,
    "max_ratio": "length ratio up to {}".format,
    "length_candidates": lambda n: f"{n} length" + "s" * (n > 1),
    "deduplicate": lambda yes: "repeats removed" if yes else "repeats kept",
    "refine_steps": "{} passes".format,
    "remove_blanks": lambda yes: "blanks removed" if yes else "blanks kept",
}
ALWAYS = ("beam", "length_candidates", "deduplicate")  # others where they are not as usual


def decodings(report: Mapping[str, Any]) -> list[str]:
    """A line, with models that decoded alike together; none where there are only files."""
    alike: dict[str, list[str]] = {}
    for name, system in report["systems"].items():
        if model := system["model"]:
            alike.setdefault(in_words(model["kind"], model["decoding"]), []).append(name)
    found = "; ".join(f"{', '.join(names)}: {how}" for how, names in alike.items())
    return [f"Decoding: {found}"] if found else []


def in_words(kind: str, decoding: Mapping[str, Option]) -> str:
    """How a model of this kind decodes.

    Example:
        >>> in_words("at", {"beam": 5, "length_penalty": 0.6}), in_words("nat", OPTIONS["nat"])
        ('beam 5, length penalty 0.6', '5 lengths, repeats removed')
    """
    if kind == "ctc":
        return "repeats and blanks removed"
    return ", ".join(
        WORDS[name](value)
        for name, value in decoding.items()
        if name in ALWAYS or value != OPTIONS[kind][name]
    )


def notes_on_options(report: Mapping[str, Any], given: Mapping[str, Option]) -> list[str]:
    """Those that change nothing, since no system here has them."""
    kinds = {system["model"]["kind"] for system in report["systems"].values() if system["model"]}
    idle = [name for name in given if not any(name in OPTIONS[kind] for kind in kinds)]
    flags = ", ".join("--" + name.replace("_", "-") for name in idle)
    return [f"{flags}: changes nothing, since no system here decodes with it"] if idle else []
