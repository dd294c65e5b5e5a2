"""Words out of the hidden states of a decoder: the likeliest of each position, or drawn ones.

Only a slice of the logits exists at any time. Probabilities are over the words that may be
predicted, see :func:`~oaxe.search.hypothesis.forbidden`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from oaxe.losses.rows import rows_of
from oaxe.model.transformer import Transformer
from oaxe.search.hypothesis import forbidden
from oaxe.search.topk import largest, logsumexp
from oaxe.search.viterbi import viterbi
from oaxe.text.symbols import BLANK

ENOUGH = 3  # words to choose from without repeats: two neighbours forbid at most two
# In memory; those of a whole batch may be many times as many. On a CPU, as many as its cache has.
LOGITS_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}


def likeliest(
    transformer: Transformer,
    hidden: Tensor,
    where: Tensor,
    *,
    may_be_blank: bool,
    bonus: float = 0.0,
    everywhere: bool = False,
    capacity: int | None = None,
    scored: bool = True,
) -> tuple[Tensor, Tensor]:
    """The likeliest words at the positions ``where`` and their log-probabilities; 0 elsewhere.

    The log-softmax is never computed: log p = logit - logsumexp.

    Args:
        hidden: ``(rows, length, dim)``: the last states of the decoder.
        bonus: a blank is chosen where its log-probability is above that of every word by it.
        everywhere: compute all positions rather than ask the device which there are.
        capacity: the most positions there are; by default, that of a packed decoder.
        scored: False for words alone, with logits in place of log-probabilities: on a CPU the
            logsumexp takes as long as the product.
    """
    rows = None
    capacity = transformer.capacity if capacity is None else capacity
    if everywhere and capacity is not None:  # packed: all of those that are real
        rows = rows_of(where.flatten(), capacity)
        hidden = rows.take(hidden.flatten(0, 1))
    else:
        hidden = hidden.flatten(0, 1) if everywhere else hidden[where]  # device sync
    best, log_probs = [], []
    for logits in slices_of_logits(transformer, hidden, may_be_blank):
        total = logits.logsumexp(1) if scored else 0.0
        if bonus:
            logits[:, BLANK] -= bonus
        top, token = logits.max(1)
        best.append(token)
        log_probs.append(top - total + (bonus * (token == BLANK) if bonus else 0.0))
    found = torch.cat(best), torch.cat(log_probs)
    if rows is not None:
        return rows.put(found[0]).view_as(where), rows.put(found[1]).view_as(where)
    if everywhere:
        return found[0].view_as(where) * where, found[1].view_as(where).where(where, 0.0)
    zeros = torch.zeros_like(where, dtype=torch.int64)
    return zeros.masked_scatter(where, found[0]), zeros.float().masked_scatter(where, found[1])


def likeliest_words(
    transformer: Transformer, hidden: Tensor, where: Tensor, n: int, *, may_be_blank: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each position the likeliest n words in order, their log-probabilities, that of a blank.

    As :func:`likeliest`, ``(rows, length, n)`` and ``(rows, length)``; computed everywhere.
    """
    vocab, symbols = transformer.output_weight.shape[0], forbidden(hidden.device)
    best, log_probs, blanks = [], [], []
    for logits in slices_of_logits(transformer, hidden.flatten(0, 1), may_be_blank):
        total = logsumexp(logits)
        blanks.append(logits[:, BLANK] - total)
        logits[:, BLANK] = float("-inf")
        top, tokens = largest(logits, min(n, vocab - len(symbols)))
        best.append(tokens)
        log_probs.append(top - total.unsqueeze(1))
    there = where.unsqueeze(2)
    tokens, found = (torch.cat(of).view(*where.shape, -1) for of in (best, log_probs))
    return tokens * there, found.where(there, 0.0), torch.cat(blanks).view_as(where)


def likely_words(
    transformer: Transformer, hidden: Tensor, n: int, *, may_be_blank: bool
) -> tuple[Tensor, Tensor]:
    """The n likeliest words of states ``(..., dim)`` and their log-probabilities, ``(..., n)``."""
    words, log_probs = [], []
    for logits in slices_of_logits(transformer, hidden.flatten(0, -2), may_be_blank):
        top, word = largest(logits, n)
        words.append(word)
        log_probs.append(top - logits.logsumexp(1, keepdim=True))
    shape = *hidden.shape[:-1], n
    return torch.cat(words).view(shape), torch.cat(log_probs).view(shape)


def likeliest_apart(
    transformer: Transformer, hidden: Tensor, where: Tensor, *, may_be_blank: bool
) -> tuple[Tensor, Tensor]:
    """The same of all tokens that differ from their neighbours: optimal de-duplication (ODD).

    Sun and Yang, 2020. Blanks are no words: they may follow each other.
    """
    words, log_probs = likely_words(transformer, hidden, ENOUGH, may_be_blank=may_be_blank)
    left, right = words[:, :-1].unsqueeze(3), words[:, 1:].unsqueeze(2)
    between = log_probs.new_zeros(()).where((left != right) | (right == BLANK), -torch.inf)
    chosen = viterbi(log_probs, between, where).unsqueeze(2)
    found = words.gather(2, chosen).squeeze(2), log_probs.gather(2, chosen).squeeze(2)
    return found[0] * where, found[1].where(where, 0.0)


def sampled_words(
    transformer: Transformer,
    hidden: Tensor,
    n: int,
    *,
    may_be_blank: bool,
    temperature: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Of each position n words that are drawn, ``(rows, length, n)``, and their log-probabilities.

    The temperature changes how they are drawn, not what their probabilities are.
    """
    words, log_probs = [], []
    for logits in slices_of_logits(transformer, hidden.flatten(0, 1), may_be_blank):
        probs = (logits / temperature).softmax(1)
        drawn = torch.multinomial(probs, n, replacement=True, generator=generator)
        words.append(drawn)
        log_probs.append(logits.log_softmax(1).gather(1, drawn))
    shape = *hidden.shape[:2], n
    return torch.cat(words).view(shape), torch.cat(log_probs).view(shape)


def slices_of_logits(
    transformer: Transformer, hidden: Tensor, may_be_blank: bool
) -> Iterator[Tensor]:
    """``(some, vocab)`` for some of ``hidden (positions, dim)`` at a time; -inf for symbols."""
    never = forbidden(hidden.device, *([BLANK] if may_be_blank else []))
    for part in torch.split(hidden, positions_at_once(transformer)):
        yield transformer.logits(part).float().index_fill_(1, never, float("-inf"))


def positions_at_once(transformer: Transformer) -> int:
    """How many have their logits in memory."""
    weight = transformer.output_weight
    return max(1, LOGITS_AT_ONCE.get(weight.device.type, 2**26) // len(weight))
