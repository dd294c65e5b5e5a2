"""Which tokens see which, where sentences lie one after the other without padding."""

from typing import NamedTuple

import torch
from torch import Tensor

CLASSES = (16, 32, 64, 128)  # longest sentence of each


class Sentences(NamedTuple):
    """Short sentences, by their length on the longer side."""

    table: Tensor  # (4, sentences) int32: first query, queries, first key, keys
    order: Tensor  # (sentences,) int32: shorter ones first
    bounds: Tensor  # (classes + 1,) int32: where each class begins in the order
    classes: int  # of CLASSES, that there may be
    causal: bool


class Spans(NamedTuple):
    """Every query sees a stretch of the keys, and every key is seen by a stretch of the queries.

    Both say the same, and neither end moves back from one token to the next; only tokens at the
    very end that see nothing may have any empty span. All are int32.
    """

    first: Tensor  # (queries,): the first key that a query sees
    last: Tensor  # (queries,): the one after the last
    first_query: Tensor  # (keys,): the first query that sees a key
    last_query: Tensor  # (keys,): the one after the last
    sentences: Sentences | None = None  # if none is longer than the last of CLASSES

    def to(self, device: torch.device | str) -> "Spans":
        first, last, first_query, last_query = (
            ends.to(device) for ends in (self.first, self.last, self.first_query, self.last_query)
        )
        short = self.sentences
        if short is not None:
            table, order, bounds = (x.to(device) for x in (short.table, short.order, short.bounds))
            short = Sentences(table, order, bounds, short.classes, short.causal)
        return Spans(first, last, first_query, last_query, short)

    def mask(self) -> Tensor:
        """``(queries, keys)`` bool, True where the query sees the key."""
        key = torch.arange(len(self.first_query), device=self.first.device)
        return (key >= self.first.unsqueeze(1)) & (key < self.last.unsqueeze(1))


def spans_between(
    query_lengths: Tensor,
    key_lengths: Tensor,
    queries: int,
    keys: int,
    causal: bool = False,
    longest: int | None = None,
) -> Spans:
    """Each sentence sees its counterpart.

    Args:
        query_lengths, key_lengths: ``(sentences,)``, of the sentences on either side.
        queries, keys: tokens on either side; those after the last sentence are padding, which sees
            nothing and is not seen.
        causal: a query sees no key after its own place; for two sides that are the same.
        longest: no sentence has more tokens than this, on either side; None: it is not known.

    Example:
        >>> lengths = torch.tensor([2, 1])
        >>> spans_between(lengths, lengths, 4, 4, causal=True).mask().int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 0, 0]], dtype=torch.int32)
    """
    first, last = _stretches(query_lengths, key_lengths, queries)
    first_query, last_query = _stretches(key_lengths, query_lengths, keys)
    if causal:
        last = last.minimum(torch.arange(1, queries + 1, device=last.device))
        first_query = first_query.maximum(torch.arange(keys, device=last.device))
    sentences = None
    if longest is not None and longest <= CLASSES[-1]:
        sentences = _sentences(query_lengths, key_lengths, longest, causal)
    return Spans(first.int(), last.int(), first_query.int(), last_query.int(), sentences)


def _sentences(query_lengths: Tensor, key_lengths: Tensor, longest: int, causal: bool) -> Sentences:
    lengths = query_lengths, key_lengths
    columns = [x for length in lengths for x in (length.cumsum(0) - length, length)]
    longer = torch.maximum(*lengths)
    n_classes = 1 + sum(size < longest for size in CLASSES[:-1])
    found, order = longer.sort()
    sizes = torch.arange(-1, n_classes, device=longer.device)  # -1: none is shorter than nothing
    limits = torch.where(sizes < 0, -1, CLASSES[0] * 2 ** sizes.clamp(min=0))
    bounds = torch.searchsorted(found, limits, right=True)
    return Sentences(torch.stack(columns).int(), order.int(), bounds.int(), n_classes, causal)


def _stretches(lengths: Tensor, others: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """For each of the tokens, the begin and the end of its sentence on the other side."""
    place = torch.arange(tokens, device=lengths.device)
    number = torch.searchsorted(lengths.cumsum(0), place, right=True)
    ends = torch.cat([others.cumsum(0), others.sum().view(1)])  # padding: from the end to the end
    last = ends[number]
    return last - torch.cat([others, others.new_zeros(1)])[number], last
