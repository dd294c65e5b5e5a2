"""How likely a language model finds given sentences, or a one-pass model given translations."""

from collections.abc import Sequence

import torch

from oaxe.decoding.translator import Translation, Translator, padded
from oaxe.search.batches import batches
from oaxe.support.devices import half_precision
from oaxe.support.errors import UserError
from oaxe.text.symbols import EOS


def log_likelihoods(
    lm: Translator, sentences: Sequence[Sequence[int]], *, batch_tokens: int = 16384
) -> list[float]:
    """log P of each sentence, its end included; natural logarithm.

    Args:
        sentences: subwords without BOS and EOS, at most ``max_length`` each.
        batch_tokens: the most positions of a batch.
    """
    score = getattr(lm.system, "log_likelihood", None)
    if score is None:
        raise UserError(
            f"a language model is needed, this is a translator ({lm.system.name}); train one with "
            "model.system: language_model"
        )
    found = [0.0] * len(sentences)
    with lm.evaluating():
        # One more than there are tokens, so that the end of an empty sentence counts too.
        for batch in batches([len(tokens) + 1 for tokens in sentences], batch_tokens):
            target = padded([sentences[i] for i in batch]).long().to(lm.system.device)
            for i, value in zip(batch, score(target).tolist(), strict=True):
                found[i] = value
    return found


def check_judge(judge: Translator, name: str) -> None:
    """Raises UserError if it cannot say how likely a translation is."""
    if not judge.system.translates or not hasattr(judge.system, "log_likelihood"):
        raise UserError(
            f"the judge {name} is a {judge.system.name}{', exported' * judge.is_exported}; it must "
            "be a model that predicts the length and then all words in one pass, with torch: cmlm, "
            "glat or hint"
        )


def likeliest(
    judge: Translator,
    sources: Sequence[str],
    translations: Sequence[Sequence[Translation]],
    *,
    batch_tokens: int = 16384,
    bf16: bool = False,
) -> list[str]:
    """Of the translations of each source, the text of the one that the judge finds likeliest.

    Args:
        judge: see :func:`check_judge`; of the same subwords as the translations.
        sources: plain text.
        translations: of each source, at least one. Those that are empty or longer than the judge
            can say are not chosen; if there are no others, it is the first.
        batch_tokens: the most positions of a batch.
        bf16: compute in bfloat16 (autocast).
    """
    limit, device = judge.system.max_length, judge.system.device
    read = [[*t[:limit], EOS] for t in judge.subwords.encode([s.strip() for s in sources])]
    pairs = [
        (line, translation)
        for line, found in enumerate(translations)
        for translation in found
        if 0 < len(translation.tokens) <= limit
    ]
    best = {line: (-torch.inf, found[0].text) for line, found in enumerate(translations)}
    lengths = [max(len(read[line]), len(t.tokens)) for line, t in pairs]
    with judge.evaluating(), half_precision(device.type, bf16):
        for batch in batches(lengths, batch_tokens):
            source = padded([read[pairs[i][0]] for i in batch]).to(device)
            target = padded([pairs[i][1].tokens for i in batch]).to(device)
            scores = judge.system.log_likelihood(source, target).tolist()
            for i, score in zip(batch, scores, strict=True):
                line, translation = pairs[i]
                best[line] = max(best[line], (score, translation.text), key=lambda pair: pair[0])
    return [text for _, text in best.values()]
