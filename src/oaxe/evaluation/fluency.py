"""Fluency: the perplexity of an output under a language model of the target language."""

import math
from collections.abc import Sequence
from typing import Any

from oaxe.decoding.likelihood import log_likelihoods
from oaxe.decoding.translator import Translator
from oaxe.text.languages import words
from oaxe.text.symbols import UNK

MAX_NATS = 700.0  # exp overflows at 709


def perplexity(
    lm: Translator, texts: Sequence[str], language: str, *, batch_tokens: int = 16384
) -> dict[str, Any]:
    """exp(-sum log P / words), per word and not per subword, so that language models compare.

    The end of a sentence counts as one word. Sentences that are longer than the language model
    can read are cut, for both sums.
    """
    limit = lm.system.max_length
    tokens = lm.subwords.encode([text.strip() for text in texts])
    long = [i for i, sentence in enumerate(tokens) if len(sentence) > limit]
    tokens = [sentence[:limit] for sentence in tokens]
    read = list(texts)
    for i, text in zip(long, lm.subwords.decode([tokens[i] for i in long]), strict=True):
        read[i] = text
    log_probability = sum(log_likelihoods(lm, tokens, batch_tokens=batch_tokens))
    n_words = sum(len(words(text, language)) + 1 for text in read)
    nats = -log_probability / max(n_words, 1)
    return {
        "perplexity": math.exp(min(nats, MAX_NATS)),
        "log_probability": log_probability,
        "words": n_words,
        "unknown_subwords": sum(sentence.count(UNK) for sentence in tokens),
        "cut_sentences": len(long),
    }
