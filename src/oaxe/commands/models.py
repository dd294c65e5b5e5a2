"""The model that a command translates with; torch is loaded if it needs it."""

from typing import TYPE_CHECKING

from oaxe.commands.options import Decoding

if TYPE_CHECKING:
    from oaxe.decoding.translator import Translator


def load(model: str | None, decoding: Decoding) -> "Translator":
    """By the name on the command line; without one, the model in the box."""
    from oaxe.decoding.saved import is_exported

    if model is None or is_exported(model):
        from oaxe.decoding.translator import Translator

        return Translator.from_pretrained(
            model, device=decoding.device or "cpu", threads=decoding.threads
        )
    from oaxe.training.run import load_translator

    if decoding.threads:
        import torch

        torch.set_num_threads(decoding.threads)
    return load_translator(model, decoding.device, decoding.systems or ())
