"""A translator written for a CPU; see :mod:`oaxe.engine`."""

import warnings
from pathlib import Path
from typing import Literal

from oaxe.decoding.saved import FORMAT
from oaxe.decoding.translator import Option, Translator
from oaxe.support.errors import UserError
from oaxe.support.extras import require_extra

Format = Literal["onnx", "ctranslate2"]
LENGTH_SHARE = 0.1  # where there is no validation text to choose it on


def export(
    translator: Translator,
    folder: Path | str,
    *,
    int8: bool = False,
    length_share: float = LENGTH_SHARE,
    format: Format = "onnx",
) -> None:
    """Write a folder that :meth:`Translator.from_pretrained` loads without torch.

    Args:
        translator: of a system in :data:`oaxe.engine.engine.DECODINGS`, such as cmlm or ctc.
        folder: new or empty.
        int8: weights in 8 bits, a quarter of the size, and faster; else float32.
        length_share: the default of that option of decoding, for a system that predicts lengths,
            unless the model has one of its own: on a CPU each candidate costs as much as the first.
            :func:`oaxe.training.exporting.choose_cpu_decoding` finds it on validation text.
        format: ``"ctranslate2"`` for an autoregressive model, which CTranslate2 translates with.
    """
    require_extra("cpu" if format == "onnx" else format, f"export to {format}")
    if translator.is_exported:
        raise UserError("this model was exported before; give the one that it was made from")
    system = translator.system
    weights = {name: tensor.float().cpu().numpy() for name, tensor in system.state_dict().items()}
    decoding = dict(translator.decoding)
    if format == "onnx":
        decoding |= without_beam(translator)
    if decoding.get("length_share") == 0:
        decoding["length_share"] = length_share
    config = {
        "format": FORMAT,
        **system.description(),
        "languages": list(translator.languages),
        "decoding": decoding,
    }
    subwords = translator.subwords
    if format == "ctranslate2":
        from oaxe.engine import ctranslate

        pieces = [subwords.piece(token) for token in range(subwords.vocab_size)]
        given = weights, config, subwords.model, pieces
        ctranslate.export(Path(folder), *given, int8=int8)
    else:
        from oaxe.engine import export as onnx

        onnx.export(Path(folder), weights, config, subwords, int8=int8)


def without_beam(translator: Translator) -> dict[str, Option]:
    """The best options that an exported model has, in place of those that need torch; warns."""
    from oaxe.engine.engine import DECODINGS, replaced

    if translator.system.name not in DECODINGS:
        return {}
    changes = replaced(translator.decoding_with())
    if changes:
        before = ", ".join(f"{name}: {translator.decoding[name]}" for name in changes)
        now = ", ".join(f"{name}: {value or 'none'}" for name, value in changes.items())
        warnings.warn(
            f"an exported model has no {before}; it is exported with {now}. With torch the model "
            "decodes as before",
            stacklevel=3,
        )
    return changes
