"""The model that a command translates with; torch is loaded if it needs it."""

from pathlib import Path
from typing import TYPE_CHECKING

from oaxe.commands.options import Decoding

if TYPE_CHECKING:
    from oaxe.decoding.translator import Translator


def load(model: str | None, decoding: Decoding) -> "Translator":
    """By the name on the command line; without one, the model in the box."""
    from oaxe.decoding.saved import CONFIG, is_exported
    from oaxe.decoding.translator import Translator

    if model is None or is_exported(model):
        return Translator.from_pretrained(
            model, device=decoding.device or "cpu", threads=decoding.threads
        )
    from oaxe.support.devices import usable_device

    if decoding.threads:
        import torch

        torch.set_num_threads(decoding.threads)
    device, systems = usable_device(decoding.device), decoding.systems or ()
    if any(path.is_file() for path in (Path(model, CONFIG), Path(model, "model", CONFIG))):
        return Translator.from_pretrained(model, device=device, systems=systems)
    from oaxe.training.run import load_translator  # slow to import: a checkpoint, or a hub's name

    return load_translator(model, device, systems)
