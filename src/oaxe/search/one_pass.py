"""All words in one pass: what decoders that are not causal have in common.

The encoder runs once. So does the decoder, for all length candidates of all sentences together;
mask-predict refinement adds passes if it is asked for.
"""

from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from oaxe.losses.arguments import kept_first, leading
from oaxe.losses.rows import rows_of
from oaxe.model.length import LengthPredictor, likely_enough, likely_lengths
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.hypothesis import Hypothesis, forbidden
from oaxe.search.replay import Call, Tensors, compute, padded_source, rounded
from oaxe.text.symbols import BLANK, MASK, PAD

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
    deduplicate: bool = True,
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
        deduplicate: collapse consecutive equal tokens.
        refine_steps: passes of the decoder. From the second on, the least likely of its own tokens
            are masked again and predicted anew (mask-predict).
        remove_blanks: let the model predict BLANK and remove it, for models trained with AXE.
        length_penalty: above 1 favours long hypotheses, of which the mean prefers the short ones.
        lengths: ``(batch, candidates)`` lengths to decode instead of predicted ones.
        call: see :mod:`oaxe.search.replay`.
    """
    recorded = call is not compute
    if recorded:
        source = padded_source(source, model.transformer.max_length)
    hidden, seen, likely, counts = call(
        read, model, source, candidates=length_candidates, share=length_share
    )
    write_some = partial(
        call,
        write,
        model,
        deduplicate=deduplicate,
        refine_steps=refine_steps,
        remove_blanks=remove_blanks,
        length_penalty=length_penalty,
        everywhere=recorded,
    )

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


def read(model: HasLength, source: Tensor, *, candidates: int, share: float) -> Tensors:
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
    deduplicate: bool,
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
    tokens, log_probs = choose(inputs, mask, mask)
    for step in range(1, refine_steps):
        n_masked = n_positions * (refine_steps - step) // refine_steps
        masked = least_likely(log_probs, mask, n_masked)
        again, again_log_probs = choose(tokens.masked_fill(masked, MASK), mask, masked)
        tokens = torch.where(masked, again, tokens)
        log_probs = torch.where(masked, again_log_probs, log_probs)
    # A blank of AXE is a position left over, not a fence between two equal words as in CTC: it goes
    # first.
    tokens, keep = compact(tokens, mask & (tokens != BLANK))
    if deduplicate:
        keep = keep & differs_from_previous(tokens)
    tokens, keep = compact(tokens, keep)
    total = log_probs.sum(1)
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
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens at the positions ``where`` and their log-probabilities; 0 elsewhere.

    Probabilities are over the words that may be predicted, see :func:`forbidden`. Only a slice of
    the logits exists at any time, and the log-softmax never: log p = logit - logsumexp.

    Args:
        everywhere: compute all positions rather than ask the device which there are.
    """
    hidden = transformer.decode(inputs, mask, encoded)
    return likeliest(transformer, hidden, where, may_be_blank=may_be_blank, everywhere=everywhere)


def likeliest(
    transformer: Transformer,
    hidden: Tensor,
    where: Tensor,
    *,
    may_be_blank: bool,
    everywhere: bool = False,
) -> tuple[Tensor, Tensor]:
    """The same for the last hidden states ``(rows, length, dim)`` of the decoder."""
    rows = None
    if everywhere and transformer.capacity is not None:  # packed: all of those that are real
        rows = rows_of(where.flatten(), transformer.capacity)
        hidden = rows.take(hidden.flatten(0, 1))
    else:
        hidden = hidden.flatten(0, 1) if everywhere else hidden[where]  # device sync
    never = forbidden(hidden.device, *([BLANK] if may_be_blank else []))
    at_once = max(1, LOGITS_AT_ONCE // transformer.output_weight.shape[0])
    best, log_probs = [], []
    for part in torch.split(hidden, at_once):  # (positions, dim)
        logits = transformer.logits(part).float().index_fill_(1, never, float("-inf"))
        top, token = logits.max(1)
        best.append(token)
        log_probs.append(top - logits.logsumexp(1))
    found = torch.cat(best), torch.cat(log_probs)
    if rows is not None:
        return rows.put(found[0]).view_as(where), rows.put(found[1]).view_as(where)
    if everywhere:
        return found[0].view_as(where) * where, found[1].view_as(where).where(where, 0.0)
    zeros = torch.zeros_like(where, dtype=torch.int64)
    return zeros.masked_scatter(where, found[0]), zeros.float().masked_scatter(where, found[1])


def least_likely(log_probs: Tensor, mask: Tensor, number: Tensor) -> Tensor:
    """``(rows, length)`` bool: the ``number (rows,)`` real positions of lowest log-probability."""
    order = log_probs.masked_fill(~mask, 1.0).argsort(dim=1, stable=True)  # padding last
    return order.argsort(1) < number.unsqueeze(1)


def differs_from_previous(tokens: Tensor) -> Tensor:
    """``(rows, length)`` bool: False for a token that repeats the one before it."""
    first = torch.ones_like(tokens[:, :1], dtype=torch.bool)
    return torch.cat([first, tokens[:, 1:] != tokens[:, :-1]], dim=1)


def compact(tokens: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens to keep moved to the left in their order, and the mask of where they are now."""
    return tokens.gather(1, kept_first(keep)), leading(keep.sum(1), keep.shape[1])


def hypotheses(
    tokens: Tensor, n_tokens: Tensor, scores: Tensor, totals: Tensor, lengths: Tensor, *, batch: int
) -> list[list[Hypothesis]]:
    """Those of each sentence, best first; rows of one sentence follow each other.

    Args:
        tokens: ``(rows, length)``, of which the first ``n_tokens (rows,)`` count.
        scores, totals, lengths: ``(rows,)``: score, log-probability, positions of the decoder.
        batch: number of sentences.
    """
    columns = (column.tolist() for column in (tokens, n_tokens, scores, lengths, totals))
    rows = [
        Hypothesis(row[:count], score, length, total)
        for row, count, score, length, total in zip(*columns, strict=True)
    ]
    k = len(rows) // batch
    return [
        sorted(rows[b * k : (b + 1) * k], key=lambda h: h.score, reverse=True) for b in range(batch)
    ]
