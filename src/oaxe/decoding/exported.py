"""A translator written for a CPU; see :mod:`oaxe.engine`."""

from pathlib import Path

from oaxe.decoding.saved import FORMAT
from oaxe.decoding.translator import Translator
from oaxe.engine import export as engine
from oaxe.support.errors import UserError


def export(translator: Translator, folder: Path | str, *, int8: bool = False) -> None:
    """Write a folder that :meth:`Translator.from_pretrained` loads without torch.

    Args:
        translator: of a system that predicts in one pass: cmlm, glat, ctc, ctc_glat or dag.
        folder: new or empty.
        int8: weights in 8 bits, a quarter of the size, and faster; else float32.
    """
    if translator.is_exported:
        raise UserError("this model was exported before; give the one that it was made from")
    system = translator.system
    weights = {name: tensor.float().cpu().numpy() for name, tensor in system.state_dict().items()}
    config = {
        "format": FORMAT,
        **system.description(),
        "languages": list(translator.languages),
        "decoding": translator.decoding,
    }
    engine.export(Path(folder), weights, config, translator.subwords.model, int8=int8)
