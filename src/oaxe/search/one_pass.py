"""All words in one pass: what decoders that are not causal have in common.

The encoder runs once. So does the decoder, for all length candidates of all sentences together;
mask-predict refinement adds passes if it is asked for.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from oaxe.losses import linear_xe_loss
from oaxe.losses.arguments import kept_first, leading
from oaxe.losses.rows import rows_of
from oaxe.model.length import LengthPredictor, likely_enough, likely_lengths
from oaxe.model.masking import IGNORED
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.hypothesis import Hypothesis, forbidden
from oaxe.search.options import Repeats
from oaxe.search.replay import Call, Tensors, compute, padded_source, rounded
from oaxe.search.top import largest, logsumexp
from oaxe.search.viterbi import viterbi
from oaxe.text.symbols import BLANK, MASK, PAD

ENOUGH = 3  # words to choose from without repeats: two neighbours forbid at most two
LOGITS_AT_ONCE = 2**26  # 256 MiB in float32; the logits of a whole batch may need many times that


class HasLength(Protocol):
    """A model that predicts the length of the target first."""

    transformer: Transformer
    length: LengthPredictor


@torch.no_grad()
def translate_lengths(
    model: HasLength,
    source: Tensor,
    *,
    length_candidates: int = 5,
    length_share: float = 0.0,
    repeats: Repeats = "merge",
    refine_steps: int = 1,
    remove_blanks: bool = False,
    length_penalty: float = 1.0,
    lengths: Tensor | None = None,
    call: Call = compute,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, one a length candidate, best score first.

    A hypothesis of n positions has the score sum(log p) / n^length_penalty.

    Args:
        model: in evaluation mode.
        source: ``(batch, source_len)``, EOS included, PAD on the right.
        length_candidates: how many of the most likely lengths to decode.
        length_share: leave out those of less than this share of the likeliest one's probability.
        repeats: what becomes of equal neighbours. ``"merge"``: one of them is left; ``"forbid"``:
            of all sentences without any, the likeliest is taken; ``"keep"``: nothing.
        refine_steps: passes of the decoder. From the second on, the least likely of its own tokens
            are masked again and predicted anew (mask-predict).
        remove_blanks: let the model predict BLANK and remove it, for models trained with AXE.
        length_penalty: above 1 favours long hypotheses, of which the mean prefers the short ones.
        lengths: ``(batch, candidates)`` lengths to decode instead of predicted ones.
        call: see :mod:`oaxe.search.replay`.
    """
    return in_every_length(
        model,
        source,
        write,
        length_candidates=length_candidates,
        length_share=length_share,
        lengths=lengths,
        call=call,
        repeats=repeats,
        refine_steps=refine_steps,
        remove_blanks=remove_blanks,
        length_penalty=length_penalty,
    )


def in_every_length(
    model: HasLength,
    source: Tensor,
    write: Callable[..., Tensors],
    *,
    length_candidates: int,
    length_share: float = 0.0,
    lengths: Tensor | None = None,
    call: Call = compute,
    **options: Any,
) -> list[list[Hypothesis]]:
    """What ``write`` makes of the likely lengths, with its own ``options``; best score first."""
    recorded = call is not compute
    if recorded:
        source = padded_source(source, model.transformer.max_length)
    hidden, seen, likely, counts = call(
        read, model, source, candidates=length_candidates, share=length_share
    )
    write_some = partial(call, write, model, everywhere=recorded, **options)

    def decode(lengths: Tensor, hidden: Tensor, seen: Tensor) -> list[list[Hypothesis]]:
        longest = int(lengths.max())  # device sync
        if recorded:
            longest = rounded(longest, model.transformer.target_positions.num_embeddings)
        mask = leading(lengths.flatten(), longest)
        inputs = torch.where(mask, MASK, PAD)  # (batch * candidates, target_len)
        return hypotheses(*write_some(inputs, mask, hidden, seen), batch=len(lengths))

    if lengths is not None or not length_share:
        return decode(likely if lengths is None else lengths, hidden, seen)
    found: list[list[Hypothesis]] = [[] for _ in source]
    for count in sorted(set(counts.tolist())):  # those with equally many candidates are a batch
        some = (counts == count).nonzero().squeeze(1)
        rows = decode(likely[some, :count], hidden[some], seen[some])
        for i, row in zip(some.tolist(), rows, strict=True):
            found[i] = row
    return found


@torch.no_grad()
def log_likelihood(model: HasLength, source: Tensor, target: Tensor) -> Tensor:
    """``(batch,)``: log P(target | source) in one pass: of its length, and of its words then.

    Args:
        model: in evaluation mode.
        source: ``(batch, source_len)``, EOS included, PAD on the right.
        target: ``(batch, target_len)`` without EOS, PAD on the right.
    """
    encoded, lengths = model.length.encode(model.transformer, source)
    real = target != PAD
    hidden = model.transformer.decode(target.masked_fill(real, MASK), real, encoded)
    weight, wanted = model.transformer.output_weight, target.masked_fill(~real, IGNORED)
    of_words = linear_xe_loss(hidden, weight, wanted, reduction="none").sum(1)
    of_length = lengths.float().log_softmax(1).gather(1, real.sum(1, keepdim=True))
    return of_length.squeeze(1) - of_words


def read(model: HasLength, source: Tensor, *, candidates: int, share: float = 0.0) -> Tensors:
    """Hidden states and mask of the source, the likely lengths of the target, and how many."""
    encoded, logits = model.length.encode(model.transformer, source)
    lengths = likely_lengths(logits, encoded.mask, candidates)
    return encoded.hidden, encoded.mask, lengths, likely_enough(logits, lengths, share)


def write(
    model: HasLength,
    inputs: Tensor,
    mask: Tensor,
    hidden: Tensor,
    seen: Tensor,
    *,
    repeats: Repeats,
    refine_steps: int,
    remove_blanks: bool,
    length_penalty: float,
    everywhere: bool,
) -> Tensors:
    """For each row of ``inputs``: see :func:`hypotheses`."""
    n_positions = mask.sum(1)  # (batch * candidates,)
    choose = partial(
        predict,
        model.transformer,
        Encoded(hidden, seen),
        may_be_blank=remove_blanks,
        everywhere=everywhere,
    )
    tokens, log_probs = choose(inputs, mask, mask, apart=repeats == "forbid")
    for step in range(1, refine_steps):
        n_masked = n_positions * (refine_steps - step) // refine_steps
        masked = least_likely(log_probs, mask, n_masked)
        again, again_log_probs = choose(tokens.masked_fill(masked, MASK), mask, masked)
        tokens = torch.where(masked, again, tokens)
        log_probs = torch.where(masked, again_log_probs, log_probs)
    return finished(tokens, log_probs.sum(1), mask, repeats, length_penalty)


def finished(
    tokens: Tensor, total: Tensor, mask: Tensor, repeats: Repeats, length_penalty: float
) -> Tensors:
    """See :func:`hypotheses`: of words ``(rows, length)`` and their log-probability ``(rows,)``."""
    # A blank of AXE is a position left over, not a fence between two equal words as in CTC: it goes
    # first. Words that were apart before are merged, too.
    tokens, keep = compact(tokens, mask & (tokens != BLANK))
    if repeats != "keep":
        keep = keep & differs_from_previous(tokens)
    tokens, keep = compact(tokens, keep)
    n_positions = mask.sum(1)
    return tokens, keep.sum(1), total / n_positions**length_penalty, total, n_positions


def predict(
    transformer: Transformer,
    encoded: Encoded,
    inputs: Tensor,
    mask: Tensor,
    where: Tensor,
    *,
    may_be_blank: bool,
    everywhere: bool = False,
    apart: bool = False,
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens at the positions ``where`` and their log-probabilities; 0 elsewhere.

    Probabilities are over the words that may be predicted, see :func:`forbidden`. Only a slice of
    the logits exists at any time, and the log-softmax never: log p = logit - logsumexp.

    Args:
        everywhere: compute all positions rather than ask the device which there are.
        apart: the likeliest that differ from their neighbours, see :func:`likeliest_apart`.
    """
    hidden = transformer.decode(inputs, mask, encoded)
    if apart:
        return likeliest_apart(transformer, hidden, where, may_be_blank=may_be_blank)
    return likeliest(transformer, hidden, where, may_be_blank=may_be_blank, everywhere=everywhere)


def likeliest(
    transformer: Transformer,
    hidden: Tensor,
    where: Tensor,
    *,
    may_be_blank: bool,
    bonus: float = 0.0,
    everywhere: bool = False,
    capacity: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The same for the last hidden states ``(rows, length, dim)`` of the decoder.

    A blank is chosen where its log-probability is above that of every word by the ``bonus``.
    ``capacity`` is the most positions there are; by default, that of a packed decoder.
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
        total = logits.logsumexp(1)
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


def slices_of_logits(
    transformer: Transformer, hidden: Tensor, may_be_blank: bool
) -> Iterator[Tensor]:
    """``(some, vocab)`` for some of ``hidden (positions, dim)`` at a time; -inf for symbols."""
    never = forbidden(hidden.device, *([BLANK] if may_be_blank else []))
    at_once = max(1, LOGITS_AT_ONCE // transformer.output_weight.shape[0])
    for part in torch.split(hidden, at_once):
        yield transformer.logits(part).float().index_fill_(1, never, float("-inf"))


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


def least_likely(log_probs: Tensor, mask: Tensor, number: Tensor) -> Tensor:
    """``(rows, length)`` bool: the ``number (rows,)`` real positions of lowest log-probability."""
    order = log_probs.masked_fill(~mask, 1.0).argsort(dim=1, stable=True)  # padding last
    return order.argsort(1) < number.unsqueeze(1)


def differs_from_previous(tokens: Tensor) -> Tensor:
    """``(rows, length)`` bool: False for a token that repeats the one before it."""
    first = torch.ones_like(tokens[:, :1], dtype=torch.bool)
    return torch.cat([first, tokens[:, 1:] != tokens[:, :-1]], dim=1)


def numbered(words: Tensor) -> tuple[Tensor, Tensor]:
    """The different ones of each row, each at its number; and the number of each.

    Example:
        >>> numbered(torch.tensor([[9, 7, 9]]))
        (tensor([[7, 9, 0]]), tensor([[1, 0, 1]]))
    """
    in_order, order = words.sort(1)
    rank = differs_from_previous(in_order).cumsum(1) - 1
    return torch.zeros_like(words).scatter(1, rank, in_order), rank.gather(1, order.argsort(1))


def compact(tokens: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens to keep moved to the left in their order, and the mask of where they are now."""
    return tokens.gather(1, kept_first(keep)), leading(keep.sum(1), keep.shape[1])


def hypotheses(
    tokens: Tensor, n_tokens: Tensor, scores: Tensor, totals: Tensor, lengths: Tensor, *, batch: int
) -> list[list[Hypothesis]]:
    """Those of each sentence, best first; rows of one sentence follow each other.

    Args:
        tokens: ``(rows, length)``, of which the first ``n_tokens (rows,)`` count.
        scores, totals, lengths: ``(rows,)``: score, log-probability, positions of the decoder. A
            row with a score of -inf is none.
        batch: number of sentences.
    """
    columns = (column.tolist() for column in (tokens, n_tokens, scores, lengths, totals))
    rows = [
        Hypothesis(row[:count], score, length, total)
        for row, count, score, length, total in zip(*columns, strict=True)
    ]
    k = len(rows) // batch
    return [
        sorted(
            (row for row in rows[b * k : (b + 1) * k] if row.score > float("-inf")),
            key=lambda h: h.score,
            reverse=True,
        )
        for b in range(batch)
    ]
