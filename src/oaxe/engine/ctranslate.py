"""Autoregressive models for CTranslate2, whose int8 search on a CPU is faster than ours.

model.bin, config.json, shared_vocabulary.json   as CTranslate2 reads them
subwords.model                                   the SentencePiece model
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

from oaxe.engine.graph import EPSILON, Weights
from oaxe.search.hypothesis import special
from oaxe.support.errors import UserError
from oaxe.support.files import make_folder, write_synced
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import BOS, EOS, UNK

NEVER = np.float32(-1e9)  # the bias of a symbol that may not be predicted


class Search:
    """CTranslate2's search with a model that was exported for it: text in, text out.

    Args:
        folder: of :func:`export`.
        max_length: of the model's architecture.
        beam_size, length_penalty, max_ratio: as in our own search.
        workers: that share the sentences of a batch.
        threads: of each worker.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_length: int,
        max_ratio: float,
        workers: int = 1,
        threads: int = 1,
        **how: Any,
    ) -> None:
        self._model = ctranslate2.Translator(
            str(folder), inter_threads=workers, intra_threads=threads
        )
        self._subwords = Subwords.load(folder / "subwords.model")
        self._pieces = [self._subwords.piece(i) for i in range(self._subwords.vocab_size)]
        self._number = {piece: i for i, piece in enumerate(self._pieces)}
        self._max_length, self._max_ratio, self._workers = max_length, max_ratio, workers
        self._how = how

    def translate(self, lines: Sequence[str]) -> list[str]:
        given = self._subwords.encode([line.strip() for line in lines])
        rows = [row[: self._max_length] for row in given]
        longest = max(map(len, rows)) + 1  # with EOS
        found = self._model.translate_batch(
            [[self._pieces[i] for i in row] for row in rows],
            max_batch_size=-(-len(rows) // self._workers),
            max_decoding_length=min(int(self._max_ratio * longest) + 10, self._max_length),
            **self._how,
        )
        best = [[self._number[piece] for piece in result.hypotheses[0]] for result in found]
        return self._subwords.decode(best)


def export(
    folder: Path,
    weights: Weights,
    config: Mapping[str, Any],
    subwords: bytes,
    pieces: Sequence[str],
    *,
    int8: bool,
) -> None:
    """Write the folder.

    Args:
        folder: a new one, or an empty one.
        weights: of the model, by the names of torch's modules.
        config: its system and architecture.
        subwords: the SentencePiece model.
        pieces: names of all tokens, by id.
        int8: weights in 8 bits, else float32.
    """
    if config["system"] != "transformer":
        raise UserError(
            f"CTranslate2 takes autoregressive models (transformer), this is a {config['system']}; "
            "leave out --format"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a new folder")
    # A copy: CTranslate2 rounds in place.
    weights = {name: weight.astype(np.float32) for name, weight in weights.items()}
    spec = transformer(weights, config["architecture"]["heads"])
    for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
        register(list(pieces))
    about = spec.config
    about.bos_token, about.eos_token, about.unk_token = (pieces[i] for i in (BOS, EOS, UNK))
    about.decoder_start_token, about.add_source_eos = pieces[BOS], True
    about.layer_norm_epsilon = EPSILON
    spec.validate()
    spec.optimize(quantization="int8" if int8 else None)
    make_folder(folder)
    spec.save(str(folder))
    write_synced(folder / "subwords.model", subwords)


def transformer(weights: Weights, heads: int) -> Any:
    """The model as CTranslate2 describes one."""

    def count(name: str) -> int:
        return sum(
            key.startswith(name) and key.endswith(".feed_forward.norm.weight") for key in weights
        )

    def linear(spec: Any, *names: str) -> None:
        spec.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        spec.bias = np.concatenate([weights[f"{name}.bias"] for name in names])

    def norm(spec: Any, name: str) -> None:
        spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def attention(spec: Any, name: str) -> None:
        """To itself, if query, key and value are one layer."""
        inner = f"{name}.sublayer"
        norm(spec.layer_norm, f"{name}.norm")
        if len(spec.linear) == 2:
            linear(spec.linear[0], f"{inner}.query", f"{inner}.key_value")
        else:
            linear(spec.linear[0], f"{inner}.query")
            linear(spec.linear[1], f"{inner}.key_value")
        linear(spec.linear[-1], f"{inner}.output")

    pre_norm = "transformer.decoder_norm.weight" in weights
    layers = count("transformer.encoder."), count("transformer.decoder.")
    found = transformer_spec.TransformerSpec.from_config(
        layers,
        heads,
        pre_norm=pre_norm,
        activation=common_spec.Activation.GELU,
        layernorm_embedding=True,
    )
    tokens = weights["transformer.tokens.weight"]
    for side, spec in (("source", found.encoder), ("target", found.decoder)):
        (spec.embeddings[0] if side == "source" else spec.embeddings).weight = tokens
        spec.scale_embeddings = False
        spec.position_encodings.encodings = weights[f"transformer.{side}_positions.weight"]
        norm(spec.layernorm_embedding, f"transformer.{side}_norm")
        kind = "encoder" if side == "source" else "decoder"
        if pre_norm:
            norm(spec.layer_norm, f"transformer.{kind}_norm")
        for number, layer in enumerate(spec.layer):
            name = f"transformer.{kind}.{number}"
            attention(layer.self_attention, f"{name}.attention")
            if side == "target":
                attention(layer.attention, f"{name}.source_attention")
            norm(layer.ffn.layer_norm, f"{name}.feed_forward.norm")
            linear(layer.ffn.linear_0, f"{name}.feed_forward.sublayer.inner")
            linear(layer.ffn.linear_1, f"{name}.feed_forward.sublayer.output")
    found.decoder.projection.weight = tokens.copy()
    bias = np.zeros(len(tokens), np.float32)
    bias[special(EOS)] = NEVER
    found.decoder.projection.bias = bias
    return found
