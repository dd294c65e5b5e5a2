"""How likely a language model finds given sentences."""

from collections.abc import Sequence

from oaxe.decoding.translator import Translator, batches, padded
from oaxe.support.errors import UserError


def log_likelihoods(
    lm: Translator, sentences: Sequence[Sequence[int]], *, batch_tokens: int = 16384
) -> list[float]:
    """log P of each sentence, its end included; natural logarithm.

    Args:
        lm: a language model.
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
