"""All words in one pass: what decoders that are not causal have in common.

The encoder runs once. So does the decoder, for all length candidates of all sentences together;
mask-predict refinement adds passes if it is asked for.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from oaxe.losses import linear_xe_loss
from oaxe.losses.arguments import kept_first, leading
from oaxe.model.length import LengthPredictor, likely_enough, likely_lengths
from oaxe.model.masking import IGNORED
from oaxe.model.transformer import Encoded, Transformer
from oaxe.search.hypothesis import Hypothesis, Positions
from oaxe.search.options import Repeats
from oaxe.search.replay import Call, Tensors, compute, padded_source, rounded
from oaxe.search.words import likeliest, likeliest_apart
from oaxe.text.symbols import BLANK, MASK, PAD


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
    length_multiplier: float = 1.0,
    lengths: Tensor | None = None,
    call: Call = compute,
    decode: Callable[..., Tensors] | None = None,
    **options: Any,
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, one a length candidate, best score first.

    Args:
        model: in evaluation mode.
        source: ``(batch, source_len)``, EOS included, PAD on the right.
        length_candidates: how many of the most likely lengths to decode.
        length_share: leave out those of less than this share of the likeliest one's probability.
        length_multiplier: predicted lengths are multiplied by this.
        lengths: ``(batch, candidates)`` lengths to decode instead of predicted ones.
        call: see :mod:`oaxe.search.replay`.
        decode: decodes masked positions, as :func:`mask_predict` does, which is the default.
        options: those of ``decode``.
    """
    recorded = call is not compute
    if recorded:
        source = padded_source(source, model.transformer.max_length)
    hidden, seen, likely, counts = call(
        encode, model, source, candidates=length_candidates, share=length_share
    )
    if length_multiplier != 1:
        likely = (likely.double() * length_multiplier).round().long()
        likely = likely.clamp(1, model.transformer.max_length)
    decode_rows = partial(call, decode or mask_predict, model, everywhere=recorded, **options)

    def decoded(lengths: Tensor, hidden: Tensor, seen: Tensor) -> list[list[Hypothesis]]:
        longest = int(lengths.max())  # device sync
        if recorded:
            longest = rounded(longest, model.transformer.target_positions.num_embeddings)
        mask = leading(lengths.flatten(), longest)
        inputs = torch.where(mask, MASK, PAD)  # (batch * candidates, target_len)
        return hypotheses(*decode_rows(inputs, mask, hidden, seen), batch=len(lengths))

    if lengths is not None or not length_share:
        return decoded(likely if lengths is None else lengths, hidden, seen)
    found: list[list[Hypothesis]] = [[] for _ in source]
    for count in sorted(set(counts.tolist())):  # those with equally many candidates are a batch
        some = (counts == count).nonzero().squeeze(1)
        rows = decoded(likely[some, :count], hidden[some], seen[some])
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


def encode(model: HasLength, source: Tensor, *, candidates: int, share: float = 0.0) -> Tensors:
    """Hidden states and mask of the source, the likely lengths of the target, and how many."""
    encoded, logits = model.length.encode(model.transformer, source)
    lengths = likely_lengths(logits, encoded.mask, candidates)
    return encoded.hidden, encoded.mask, lengths, likely_enough(logits, lengths, share)


def mask_predict(
    model: HasLength,
    inputs: Tensor,
    mask: Tensor,
    hidden: Tensor,
    seen: Tensor,
    *,
    repeats: Repeats = "merge",
    refine_steps: int = 1,
    remove_blanks: bool = False,
    length_penalty: float = 1.0,
    score_merged: bool = False,
    everywhere: bool,
) -> Tensors:
    """For each row of ``inputs``: see :func:`hypotheses`.

    A hypothesis of n positions has the score sum(log p) / n^length_penalty.

    Args:
        inputs, mask: ``(rows, length)``: MASK at the real positions, else PAD.
        hidden, seen: the encoded source and its mask.
        repeats: what becomes of equal neighbours. ``"merge"``: one of them is left; ``"forbid"``:
            of all sentences without any, the likeliest is taken; ``"keep"``: nothing.
        refine_steps: passes of the decoder. From the second on, the least likely of its own tokens
            are masked again and predicted anew.
        remove_blanks: let the model predict BLANK and remove it, for models trained with AXE.
        length_penalty: above 1 favours long hypotheses, of which the mean prefers the short ones.
        score_merged: positions that repeat the word before them have no part in the score.
        everywhere: see :func:`~oaxe.search.words.likeliest`.
    """
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
    given = tokens, log_probs, log_probs.sum(1), mask
    words, n_words, score, *rest = finished(*given, repeats, length_penalty)
    if score_merged:
        counted = mask & differs_from_previous(tokens)
        score = log_probs.where(counted, 0).sum(1) / counted.sum(1) ** length_penalty
    return words, n_words, score, *rest


def finished(
    tokens: Tensor,
    log_probs: Tensor,
    total: Tensor,
    mask: Tensor,
    repeats: Repeats,
    length_penalty: float,
) -> Tensors:
    """See :func:`hypotheses`: of words ``(rows, length)``, whose log-probability is ``total``."""
    # A blank of AXE is a position left over, not a fence between two equal words as in CTC: it goes
    # first. Words that were apart before are merged, too.
    at = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    at, keep = compact(at, mask & (tokens != BLANK))
    if repeats != "keep":
        keep = keep & differs_from_previous(tokens.gather(1, at))
    at, keep = compact(at, keep)
    words, n_positions = tokens.gather(1, at), mask.sum(1)
    score = total / n_positions**length_penalty
    said = tokens, log_probs, n_positions, at
    return words, keep.sum(1), score, total, n_positions, *said


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
    """What the decoder predicts at the positions ``where``: see :func:`likeliest`.

    Args:
        apart: the likeliest that differ from their neighbours, see :func:`likeliest_apart`.
    """
    hidden = transformer.decode(inputs, mask, encoded)
    if apart:
        return likeliest_apart(transformer, hidden, where, may_be_blank=may_be_blank)
    return likeliest(transformer, hidden, where, may_be_blank=may_be_blank, everywhere=everywhere)


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
    tokens: Tensor,
    n_tokens: Tensor,
    scores: Tensor,
    totals: Tensor,
    lengths: Tensor,
    *said: Tensor,
    batch: int,
    skips: bool = False,
) -> list[list[Hypothesis]]:
    """Those of each sentence, best first; rows of one sentence follow each other.

    Args:
        tokens: ``(rows, length)``, of which the first ``n_tokens (rows,)`` count.
        scores, totals, lengths: ``(rows,)``: score, log-probability, positions of the decoder. A
            row with a score of -inf is none.
        said: if known, ``(rows, positions)``: what each position says, and its log-probability;
            ``(rows,)``: how many of them count; ``(rows, length)``: where the tokens come from.
        batch: number of sentences.
        skips: positions that no token comes from are not on the path of a DAG.
    """
    columns = (column.tolist() for column in (tokens, n_tokens, scores, lengths, totals))
    rows = [
        Hypothesis(row[:count], score, length, total, positions)
        for row, count, score, length, total, positions in zip(
            *columns, positions_of(n_tokens, *said, skips=skips), strict=True
        )
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


def positions_of(n_tokens: Tensor, *said: Tensor, skips: bool) -> list[Positions | None]:
    """See :func:`hypotheses`; None where they are not known, or on a GPU: nobody waits for it."""
    if not said or said[0].device.type != "cpu":
        return [None] * len(n_tokens)
    columns = (column.numpy() for column in (*said, n_tokens))
    return [
        Positions(words[:n], log_probs[:n], at[:count], at[:count].tolist() if skips else None)
        for words, log_probs, n, at, count in zip(*columns, strict=True)
    ]
