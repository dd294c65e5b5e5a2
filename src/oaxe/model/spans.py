"""Which tokens see which, where sentences lie one after the other without padding."""

from typing import NamedTuple

import torch
from torch import Tensor


class Spans(NamedTuple):
    """Every query sees a stretch of the keys, and every key is seen by a stretch of the queries.

    Both say the same, and neither end moves back from one token to the next; only tokens at the
    very end that see nothing may have any empty span. All are int32.
    """

    first: Tensor  # (queries,): the first key that a query sees
    last: Tensor  # (queries,): the one after the last
    first_query: Tensor  # (keys,): the first query that sees a key
    last_query: Tensor  # (keys,): the one after the last

    def mask(self) -> Tensor:
        """``(queries, keys)`` bool, True where the query sees the key."""
        key = torch.arange(len(self.first_query), device=self.first.device)
        return (key >= self.first.unsqueeze(1)) & (key < self.last.unsqueeze(1))


def spans_between(
    query_lengths: Tensor, key_lengths: Tensor, queries: int, keys: int, causal: bool = False
) -> Spans:
    """Each sentence sees its counterpart.

    Args:
        query_lengths, key_lengths: ``(sentences,)``, of the sentences on either side.
        queries, keys: tokens on either side; those after the last sentence are padding, which sees
            nothing and is not seen.
        causal: a query sees no key after its own place; for two sides that are the same.

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
    return Spans(*(ends.int() for ends in (first, last, first_query, last_query)))


def _stretches(lengths: Tensor, others: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """For each of the tokens, the begin and the end of its sentence on the other side."""
    place = torch.arange(tokens, device=lengths.device)
    number = torch.searchsorted(lengths.cumsum(0), place, right=True)
    ends = torch.cat([others.cumsum(0), others.sum().view(1)])  # padding: from the end to the end
    last = ends[number]
    return last - torch.cat([others, others.new_zeros(1)])[number], last
