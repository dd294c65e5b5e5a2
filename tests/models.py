"""Small models of random weights, large enough for every path to matter and for words to differ."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from oaxe.model.transformer import Size, Transformer, initialise
from oaxe.support.config import build as build_options
from oaxe.systems import System, build, find
from oaxe.text.symbols import EOS, PAD, SYMBOLS

Module = TypeVar("Module", bound=nn.Module)

VOCAB = 30
MICRO = Size(dim=32, ffn=64, heads=4, encoder_layers=2, decoder_layers=2)
NOISE = {"tokens": 0.7, "target_positions": 2.0}  # standard deviation, by name of the module


def micro(
    system: str = "cmlm",
    norm: str = "post",
    *,
    options: Mapping[str, Any] | None = None,
    **architecture: Any,
) -> System:
    """A system in evaluation mode; ``options`` as in its section of the YAML."""
    sizes = {"vocab_size": VOCAB, **MICRO, "max_length": 12, "norm": norm, **architecture}
    model = build(system, sizes, build_options(find(system).Options, options or {}))
    return with_noise(model).eval()


def micro_transformer(norm: str = "post", **arguments: Any) -> Transformer:
    """The Transformer alone, in evaluation mode; not causal unless the arguments say so."""
    sizes: dict[str, Any] = {"vocab_size": VOCAB, **MICRO, "max_length": 12, "causal": False}
    model = Transformer(**(sizes | {"norm": norm} | arguments))
    initialise(model)
    return with_noise(model).eval()


def with_noise(module: Module) -> Module:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            scale = NOISE.get(name.split(".")[-2], 0.1 if parameter.dim() == 1 else 0.2)
            parameter.add_(torch.randn_like(parameter), alpha=scale)
    return module


def random_batch(*lengths: int) -> Tensor:
    """Sentences of these many tokens, EOS at the end, padded on the right."""
    rows = [torch.cat([torch.randint(len(SYMBOLS), VOCAB, (n - 1,)), torch.tensor([EOS])])
            for n in lengths]  # fmt: skip
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def hidden_states(model: Transformer, source: Tensor, inputs: Tensor) -> Tensor:
    """``(rows, length, dim)``: what the decoder makes of inputs that are padded with PAD."""
    return model.decode(inputs, inputs != PAD, model.encode(source))


def emphasise(model: Module, *symbols: int, factor: float = 4.0) -> Module:
    """The same model, whose embeddings of these symbols are longer: it predicts them more often."""
    transformer = model.transformer if isinstance(model, System) else model
    assert isinstance(transformer, Transformer)
    with torch.no_grad():
        transformer.tokens.weight[list(symbols)] *= factor
    return model


def eager_to_end(model: Module, factor: float = 2.0) -> Module:
    """Random autoregressive models hardly ever stop; this one stops at all kinds of lengths."""
    return emphasise(model, EOS, factor=factor)
