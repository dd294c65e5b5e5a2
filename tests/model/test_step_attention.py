"""Attention of one decoding step: the kernel against the definition, one row at a time."""

import pytest
import torch
from torch import Tensor

from oaxe.model.attention import step_attention

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from oaxe.model.kernels.step_attention import attend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, DIM = 3, 16


def seen_by_definition(query: Tensor, key_value: Tensor, seen: list[list[list[int]]]) -> Tensor:
    """``seen[sentence][row]`` are the keys."""
    out = torch.zeros_like(query)
    for sentence, of_rows in enumerate(seen):
        for row, keys in enumerate(of_rows):
            for head in range(query.shape[2]):
                k, v = key_value[sentence, keys, :, head].unbind(1)
                weights = (k @ query[sentence, row, head] / DIM**0.5).softmax(0)
                out[sentence, row, head] = weights @ v
    return out


@pytest.mark.parametrize("rows", [1, 5, 17])
def test_each_row_sees_its_path(rows: int) -> None:
    """Of a store with room for more, whose rest must not matter; some have more than one block."""
    torch.manual_seed(rows)
    room, steps = 30, torch.tensor([1, 4, 25])
    store = torch.randn(3, room + 2, rows, 2, HEADS, DIM)[:, :room].flatten(1, 2)
    query, paths = torch.randn(3, rows, HEADS, DIM), torch.randint(rows, (3, rows, room))
    seen = [
        [[t * rows + int(paths[s, row, t]) for t in range(n)] for row in range(rows)]
        for s, n in enumerate(steps.tolist())
    ]
    expected = seen_by_definition(query.double(), store.double(), seen)
    written = torch.where(torch.arange(room) < steps.view(-1, 1, 1), paths, -1).int()
    given = query.to(DEVICE), store.to(DEVICE), (steps * rows).to(DEVICE)
    ours = attend(*given, written.to(DEVICE))
    torch.testing.assert_close(ours.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    mask = (written.unsqueeze(3) == torch.arange(rows)).view(3 * rows, room * rows)
    plain = step_attention(*given, mask.to(DEVICE), written.to(DEVICE))
    torch.testing.assert_close(plain.cpu().double(), expected, atol=1e-5, rtol=1e-5)


def test_all_rows_see_the_source() -> None:
    query, source = torch.randn(2, 5, HEADS, DIM), torch.randn(2, 70, 2, HEADS, DIM)
    count = torch.tensor([3, 70])
    seen = [[list(range(n))] * 5 for n in count.tolist()]
    expected = seen_by_definition(query.double(), source.double(), seen)
    ours = attend(query.to(DEVICE), source.to(DEVICE), count.to(DEVICE), None)
    torch.testing.assert_close(ours.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    mask = torch.arange(70) < count.unsqueeze(1)
    plain = step_attention(query.to(DEVICE), source.to(DEVICE), count.to(DEVICE), mask.to(DEVICE))
    torch.testing.assert_close(plain.cpu().double(), expected, atol=1e-5, rtol=1e-5)
