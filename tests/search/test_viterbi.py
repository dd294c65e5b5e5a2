"""The best sequence against the enumeration of all."""

from itertools import pairwise, product

import pytest
import torch

from oaxe.search.viterbi import viterbi


@pytest.mark.parametrize(("length", "n"), [(1, 3), (2, 2), (4, 3), (5, 1)])
def test_equals_enumeration(length: int, n: int) -> None:
    rows = 8
    scores, between = torch.randn(rows, length, n), torch.randn(rows, length - 1, n, n)
    between[:, :, 0, 0] = -torch.inf
    lengths = torch.randint(1, length + 1, (rows,))
    mask = torch.arange(length) < lengths.unsqueeze(1)
    found = viterbi(scores, between if n > 1 else between.zero_(), mask)
    for row, of_row in enumerate(lengths.tolist()):

        def score(choice: tuple[int, ...], row: int = row) -> float:
            own = sum(scores[row, t, c].item() for t, c in enumerate(choice))
            pairs = enumerate(pairwise(choice))
            return own + sum(between[row, t, a, b].item() for t, (a, b) in pairs)

        best = max(product(range(n), repeat=of_row), key=score)
        assert found[row].tolist() == [*best, *[0] * (length - of_row)]
