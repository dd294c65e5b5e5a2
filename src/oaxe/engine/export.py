"""From a trained model to the folder of the engine.

encoder.onnx, decoder.onnx   the layers
tables.safetensors           embeddings, positions, in int8 with their scales
subwords.model, config.json  as of the model, with the precision and other checksums
ngrams/                      those that it is decoded with, if it is, in 8 bits with the others

``config.json`` is written last: a folder that has it is whole.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from oaxe.engine import output
from oaxe.engine.checks import DECODINGS
from oaxe.engine.engine import DECODER, ENCODER, TABLES, check
from oaxe.engine.graph import Ranges, Weights, decoder_graph, encoder_graph, link_table, quantised
from oaxe.engine.ranges import ranges
from oaxe.support.config import build, to_mapping
from oaxe.support.errors import UserError
from oaxe.support.files import make_folder, write_synced
from oaxe.text.ngram_files import with_ngrams
from oaxe.text.subwords import Subwords

POSITIONS = ("source_positions", "target_positions", "source_from_end", "target_from_end")


def export(
    folder: Path, weights: Weights, config: Mapping[str, Any], subwords: Subwords, *, int8: bool
) -> None:
    """Write the folder.

    Args:
        folder: a new one, or an empty one.
        weights: of the model, by the names of torch's modules.
        config: its system, options, architecture, languages and decoding.
        subwords: those of the model.
        int8: layers, embeddings and n-grams in 8 bits, else float32.
    """
    name = config["system"]
    if name not in DECODINGS:
        raise UserError(
            f"a model of the system {name} cannot be exported to ONNX; those of "
            f"{', '.join(DECODINGS)} can (a transformer: --format ctranslate2)"
        )
    decoding = build(DECODINGS[name], config["decoding"], f"export of {name}")
    check(decoding)
    if int8 and config["architecture"]["dim"] % output.NUMBERS:
        raise UserError(
            f"in int8 the dimension must be a multiple of {output.NUMBERS}, got "
            f"{config['architecture']['dim']}; export in float32"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a new folder")
    weights = {name: weight.astype(np.float32) for name, weight in weights.items()}
    heads = config["architecture"]["heads"]
    read = ranges(model_files(weights, heads, {}), config) if int8 else None
    files = {**model_files(weights, heads, read), "subwords.model": subwords.model}
    make_folder(folder)
    content = {
        **config,
        "decoding": with_ngrams(folder, to_mapping(decoding), subwords, eight_bits=int8),
        "precision": "int8" if int8 else "float32",
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    for name, data in files.items():
        write_synced(folder / name, data)
    write_synced(folder / "config.json", (json.dumps(content, indent=2) + "\n").encode())


def model_files(weights: Weights, heads: int, read: Ranges | None) -> dict[str, bytes]:
    """The graphs and tables: in int8, if it is known what the layers read."""
    return {
        ENCODER: encoder_graph(weights, heads, read),
        DECODER: decoder_graph(weights, heads, read),
        TABLES: save(tables(weights, bool(read))),
    }


def tables(weights: Weights, int8: bool) -> dict[str, NDArray[Any]]:
    """What numpy looks up: embeddings, which are the output layer as well, and positions."""
    found = {
        name: weights[f"transformer.{name}.weight"]
        for name in POSITIONS
        if f"transformer.{name}.weight" in weights
    }
    tokens = weights["transformer.tokens.weight"]
    if int8:
        rounded, found["scale"] = quantised(tokens, output.LARGEST)
        found["tokens"] = output.pack(rounded)
        found["sums"] = rounded.sum(1, dtype=np.int32)
    else:
        found["tokens"] = tokens
    if "links.gate.weight" in weights:
        found["links"] = link_table(weights)
    return found
