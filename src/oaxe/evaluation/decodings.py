"""How models were decoded, in words."""

from collections.abc import Mapping
from typing import Any

from oaxe.decoding.translator import Option


def decodings(report: Mapping[str, Any]) -> list[str]:
    """A line, with models that decoded alike together; none where there are only files."""
    alike: dict[str, list[str]] = {}
    for name, system in report["systems"].items():
        if model := system["model"]:
            alike.setdefault(model["decoding_in_words"], []).append(name)
    found = "; ".join(f"{', '.join(names)}: {how}" for how, names in alike.items())
    return [f"Decoding: {found}"] if found else []


def notes_on_options(report: Mapping[str, Any], given: Mapping[str, Option]) -> list[str]:
    """Those that change nothing, since no system here has them."""
    models = [system["model"] for system in report["systems"].values() if system["model"]]
    idle = [name for name in given if not any(name in model["decoding"] for model in models)]
    flags = ", ".join("--" + name.replace("_", "-") for name in idle)
    return [f"{flags}: changes nothing, since no system here decodes with it"] if idle else []
