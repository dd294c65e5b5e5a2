"""The operations that training cannot do without: products with weights, and attention.

Counted for real tokens alone, forward and twice that backward. What is left out is small, or no
product: the matching of OaXE, softmax, layer norm, dropout, the optimiser.
"""

import numpy as np
from torch import nn

from oaxe.model.layers import DecoderLayer
from oaxe.model.length import LengthPredictor
from oaxe.systems import Example, System
from oaxe.text.batches import collate
from oaxe.text.corpus import Corpus
from oaxe.text.plans import Indices
from oaxe.text.symbols import PAD

COUNTED = ("cmlm", "transformer", "language_model", "ctc")  # not GLAT, which decodes twice
PASSES = 3  # forward, and twice that backward
SAMPLE, CHUNK = 20_000, 1_000  # sentences


def flop_of(system: System, example: Example) -> float:
    """Of a batch; its padding counts nothing.

    The output layer counts where there is a loss (CTC: at all positions), attention of a causal
    model where it looks: at half of the pairs.
    """
    transformer, dim = system.transformer, system.transformer.tokens.embedding_dim
    source, target = (example.source != PAD).sum(1).double(), example.mask.sum(1).double()
    heads = [part for part in system.modules() if isinstance(part, LengthPredictor)]
    sentences = (source > 0).sum()
    source = source + len(heads) * (source > 0)  # LENGTH
    own_pairs = target * (target + 1) / 2 if transformer.causal else target**2
    output_rows = example.mask.sum() if system.name == "ctc" else example.n_words

    products = weights(transformer.encoder) * source.sum()
    products += output_rows * transformer.output_weight.numel()
    products += sum(head.output.weight.numel() for head in heads) * sentences
    pairs = len(transformer.encoder) * (source**2).sum()
    for layer in transformer.decoder:
        assert isinstance(layer, DecoderLayer)
        of_source = layer.source_attention.sublayer.key_value.weight.numel()  # type: ignore
        products += of_source * source.sum() + (weights(layer) - of_source) * target.sum()
        pairs += own_pairs.sum() + (source * target).sum()
    return float(PASSES * (2 * products + 4 * dim * pairs))  # queries by keys, then by values


def flop_of_a_token(system: System, corpus: Corpus) -> float | None:
    """For each target token, source included; the mean of a sample of the corpus.

    None for a system whose work is not counted.
    """
    if system.name not in COUNTED:
        return None
    order = np.random.default_rng(0).permutation(len(corpus))[:SAMPLE]
    order = order[np.argsort(corpus.target_lengths[order], kind="stable")]
    flop, tokens = 0.0, 0
    for start in range(0, len(order), CHUNK):
        some: Indices = order[start : start + CHUNK]
        batch = collate(corpus, some)
        flop += flop_of(system, system.example(batch.source, batch.target))
        tokens += batch.n_target_tokens
    return flop / tokens


def weights(module: nn.Module) -> int:
    """The number of weights in all matrices."""
    return sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)
