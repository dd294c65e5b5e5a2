"""What an exported model may say besides :mod:`oaxe.decoding.checks`: its files come from anybody.

Its system is one of the engine's, and its tables have the shapes that its config.json says. Each
check raises UserError.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from oaxe.engine.output import NUMBERS, PANEL, WORDS
from oaxe.search.options import CTCDecoding, DAGDecoding, LengthDecoding, MaskPredictDecoding
from oaxe.support.errors import UserError

DECODINGS: dict[str, type[Any]] = {  # the systems that can be exported
    "cmlm": MaskPredictDecoding,
    "glat": LengthDecoding,
    "hint": LengthDecoding,
    "ctc": CTCDecoding,
    "ctc_glat": CTCDecoding,
    "ddrs": CTCDecoding,
    "imputer": CTCDecoding,
    "dag": DAGDecoding,
}
FACTORS = {  # options that say how many positions there are for each source subword
    name: "vertices" if kind is DAGDecoding else "upsample"
    for name, kind in DECODINGS.items()
    if kind in (CTCDecoding, DAGDecoding)
}
MOST_FACTOR = 100  # as in the systems
MOST_THREADS = 1_024  # many more, and libraries crash rather than say so
PRECISIONS = ("float32", "int8")
Table = tuple[tuple[int, ...], "np.dtype[Any]"]


def check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UserError(
            f"threads must be from 1 to {MOST_THREADS:,}, got {threads}; leave it out for as many "
            "as there are cores"
        )


def check_config(config: Mapping[str, Any], folder: Path) -> None:
    """The system, its precision and its options."""
    name, options, precision = config["system"], config["options"], config["precision"]
    if name not in DECODINGS:
        raise UserError(
            f"{folder} holds a model of the system {name!r}; this version of oaxe translates with "
            f"exported models of {', '.join(DECODINGS)}"
        )
    if precision not in PRECISIONS:
        raise UserError(
            f"precision of {folder} must be one of {', '.join(PRECISIONS)}, got {precision!r}; "
            "copy the folder again"
        )
    if not isinstance(options.get("loss", {}), dict):
        raise UserError(
            f"loss of {name} in {folder} must be an object with a name, got {options['loss']!r}; "
            "copy the folder again"
        )
    if factor := FACTORS.get(name):
        value = options.get(factor)
        if type(value) is not int or not 1 <= value <= MOST_FACTOR:
            raise UserError(
                f"{factor} of {name} in {folder} must be a number from 1 to {MOST_FACTOR}, got "
                f"{value!r}; copy the folder again"
            )


def load_tables(path: Path, config: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Checked, since C code relies on their shapes."""
    try:
        tables: dict[str, NDArray[Any]] = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is no safetensors file: {error}") from None
    expected = shapes(config)
    wrong = [
        name
        for name in sorted({*expected, *tables})
        if name not in tables
        or (tables[name].shape, tables[name].dtype) != expected.get(name)
        or not np.isfinite(tables[name]).all()
    ]
    if wrong:
        raise UserError(
            f"{path} does not fit its config.json, or is not finite: {', '.join(wrong)}; export "
            "the model again"
        )
    return tables


def shapes(config: Mapping[str, Any]) -> dict[str, Table]:
    """Shape and type of each table; see :func:`oaxe.engine.export.tables`."""
    name, architecture = config["system"], config["architecture"]
    vocab, dim, longest = (architecture[key] for key in ("vocab_size", "dim", "max_length"))
    real = np.dtype(np.float32)
    expected: dict[str, Table] = {"tokens": ((vocab, dim), real)}
    if config["precision"] == "int8":
        blocks = -(-vocab // PANEL) * PANEL // WORDS
        expected = {
            "tokens": ((blocks, dim // NUMBERS, WORDS, NUMBERS), np.dtype(np.int8)),
            "scale": ((vocab,), real),
            "sums": ((vocab,), np.dtype(np.int32)),
        }
    n_source = n_target = longest + 2  # LENGTH or BOS in front, EOS behind
    if factor := FACTORS.get(name):
        n_target = config["options"][factor] * (longest + 1)
    for end in ("positions", "from_end")[: 1 + (architecture.get("positions") == "both")]:
        expected |= {f"source_{end}": ((n_source, dim), real)}
        expected |= {f"target_{end}": ((n_target, dim), real)}
    if name == "dag":
        expected["links"] = ((n_target, 2 * dim + architecture["heads"]), real)
    return expected
