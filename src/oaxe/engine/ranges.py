"""How large the numbers are that each layer reads: int8 divides that range into 255 steps.

The range is of the model, not of a pass: so a translation does not depend on the sentences beside
it. It is that of random sentences, which spares an export all text. On the model in the box it is
nearly that of real ones, and the few numbers beyond it become the nearest within.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from oaxe.engine.engine import DECODER, ENCODER, Engine
from oaxe.engine.graph import Ranges
from oaxe.search.options import LengthDecoding, MaskPredictDecoding
from oaxe.text.symbols import EOS, SYMBOLS

SENTENCES, LONGEST, SEED = 300, 30, 1


class Watched:
    """A session of a graph whose last results are what its layers read."""

    def __init__(self, session: Any, names: list[str], ranges: Ranges) -> None:
        self.session, self.names, self.ranges = session, names, ranges

    def run(self, outputs: None, given: Mapping[str, Any]) -> list[Any]:
        found: list[Any] = self.session.run(outputs, given)
        for name, read in zip(self.names, found, strict=True):
            low, high = self.ranges.get(name, (0.0, 0.0))
            self.ranges[name] = min(low, float(read.min())), max(high, float(read.max()))
        return found[: len(found) - sum("." in name for name in self.names)]


def ranges(files: Mapping[str, bytes], config: Mapping[str, Any]) -> Ranges:
    """Of each linear layer, by its name.

    Args:
        files: of the model in float32, with graphs that are watched.
        config: its system, options and architecture.
    """
    config = {**config, "precision": "float32", "sha256": dict.fromkeys(files, "")}
    found: Ranges = {}
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        engine = Engine(Path(folder), config, threads=1)
    sessions = zip((ENCODER, DECODER), (engine._encoder, engine._decoder), strict=True)
    engine._encoder, engine._decoder = (
        Watched(session, [o.name for o in onnx.load_from_string(files[name]).graph.output], found)
        for name, session in sessions
    )
    how = engine.decoding_type()
    if isinstance(how, LengthDecoding):
        how = replace(how, length_candidates=1)
    if isinstance(how, MaskPredictDecoding):  # the decoder reads masks first, then words as well
        how = replace(how, refine_steps=2)
    rng = np.random.default_rng(SEED)
    for _ in range(SENTENCES):  # one by one: padding does not count
        length = int(rng.integers(1, min(LONGEST, engine.max_length) + 1))
        words = rng.integers(len(SYMBOLS), engine.vocab_size, length).tolist()
        engine.translate([[*words, EOS]], how)
    return found
