"""Attention of packed sentences: spans against loops, the kernels against the definition."""

import pytest
import torch
from torch import Tensor

from oaxe.model import span_attention
from oaxe.model.span_attention import cross_attention, self_attention
from oaxe.model.spans import Spans, spans_between

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, DIM = 2, 32


def on_device(spans: Spans) -> Spans:
    return Spans(*(ends.to(DEVICE) for ends in spans))


def seen_by_loops(lengths: list[int], others: list[int], causal: bool) -> set[tuple[int, int]]:
    pairs, begin, other_begin = set(), 0, 0
    for length, other in zip(lengths, others, strict=True):
        for i in range(length):
            for j in range(min(other, i + 1) if causal else other):
                pairs.add((begin + i, other_begin + j))
        begin, other_begin = begin + length, other_begin + other
    return pairs


@pytest.mark.parametrize(
    ("lengths", "others", "causal"),
    [
        ([3, 1, 5], [3, 1, 5], False),
        ([3, 1, 5], [3, 1, 5], True),
        ([3, 1, 5], [2, 7, 1], False),
        ([0, 4, 0], [0, 2, 0], False),
    ],
)
def test_spans_are_sentences(lengths: list[int], others: list[int], causal: bool) -> None:
    queries, keys = sum(lengths) + 2, sum(others) + (2 if causal else 3)
    spans = spans_between(torch.tensor(lengths), torch.tensor(others), queries, keys, causal)
    expected = seen_by_loops(lengths, others, causal)
    mask = spans.mask()
    assert {(int(q), int(k)) for q, k in mask.nonzero()} == expected
    by_key = {
        (query, key)
        for key in range(keys)
        for query in range(int(spans.first_query[key]), int(spans.last_query[key]))
    }
    assert by_key == expected
    assert all(ends.dtype == torch.int32 for ends in spans)
    for ends, n in zip(spans, (sum(lengths),) * 2 + (sum(others),) * 2, strict=True):
        assert (ends[:n].diff() >= 0).all()


def attention_by_loops(query: Tensor, key_value: Tensor, pairs: set[tuple[int, int]]) -> Tensor:
    """All projected: ``(queries, heads, dim)``, ``(keys, 2, heads, dim)``."""
    rows = []
    for i, one in enumerate(query):
        keys = sorted(k for q, k in pairs if q == i)
        scores = torch.einsum("hd,khd->hk", one, key_value[keys, 0]) / one.shape[1] ** 0.5
        rows.append(torch.einsum("hk,khd->hd", scores.softmax(1), key_value[keys, 1]))
    return torch.stack(rows).flatten(1)


def parameters(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(*s, dtype=torch.float64).requires_grad_() for s in shapes]


def test_self_attention_is_its_definition() -> None:
    lengths = [3, 1, 4]
    spans = spans_between(torch.tensor(lengths), torch.tensor(lengths), 9, 9, causal=True)
    x, weight, bias = parameters((9, DIM), (3 * DIM, DIM), (3 * DIM,))
    out = self_attention(x, weight, bias, HEADS, spans)
    projected = (x @ weight.T + bias).view(9, 3, HEADS, -1)
    expected = attention_by_loops(
        projected[:, 0], projected[:, 1:], seen_by_loops(lengths, lengths, causal=True)
    )
    torch.testing.assert_close(out, expected)
    found, right = (
        torch.autograd.grad(y.square().sum(), (x, weight, bias)) for y in (out, expected)
    )
    torch.testing.assert_close(found, right)


def test_cross_attention_is_its_definition() -> None:
    lengths, others = [2, 4], [5, 1]
    spans = spans_between(torch.tensor(lengths), torch.tensor(others), 7, 8)
    given = parameters((7, DIM), (8, DIM), (DIM, DIM), (DIM,), (2 * DIM, DIM), (2 * DIM,))
    x, source, query_weight, query_bias, weight, bias = given
    out, again = cross_attention(*given, HEADS, spans)  # type: ignore[call-arg, arg-type]
    expected = attention_by_loops(
        (x @ query_weight.T + query_bias).view(7, HEADS, -1),
        (source @ weight.T + bias).view(8, 2, HEADS, -1),
        seen_by_loops(lengths, others, causal=False),
    )
    torch.testing.assert_close(out, expected)
    factor = torch.randn_like(source)
    found = torch.autograd.grad(out.square().sum() + (again * factor).sum(), given)
    right = torch.autograd.grad(expected.square().sum() + (source * factor).sum(), given)
    torch.testing.assert_close(found, right)


LENGTHS = {
    "odd": ([5, 1, 17, 40, 3, 1], [1, 9, 2, 33, 8, 30]),
    "one long": ([100], [70]),
    "some without a counterpart": ([3, 7, 20, 4], [40, 0, 6, 0]),
}


def check_kernel(
    monkeypatch: pytest.MonkeyPatch,
    operator: object,
    spans: Spans,
    *shapes: tuple[int, ...],
    twice: bool = False,
) -> None:
    """In float32, where the plain path in float64 is right."""
    given = [torch.randn(*s, dtype=torch.float64) / s[-1] ** 0.5 for s in shapes]
    gradients = [torch.randn(shape, dtype=torch.float64) for shape in shapes[: 1 + twice]]

    def both_ways(given: list[Tensor], spans: Spans) -> list[Tensor]:
        given = [x.requires_grad_() for x in given]
        out = operator(*given, HEADS, spans)  # type: ignore[operator]
        outs = out if twice else (out,)
        factors = [g.to(given[0]) for g in gradients]
        return [*outs, *torch.autograd.grad(outs, given, factors)]

    right = both_ways(given, spans)
    monkeypatch.setattr(span_attention, "_is_fused", lambda x, heads: True)
    ours = both_ways([x.detach().float().to(DEVICE) for x in given], on_device(spans))
    for mine, theirs in zip(ours, right, strict=True):
        torch.testing.assert_close(mine.cpu().double(), theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", LENGTHS)
def test_self_kernel(case: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    lengths = torch.tensor(LENGTHS[case][0])
    tokens = int(lengths.sum()) + 70  # a whole tile of padding
    spans = spans_between(lengths, lengths, tokens, tokens, causal)
    check_kernel(monkeypatch, self_attention, spans, (tokens, DIM), (3 * DIM, DIM), (3 * DIM,))


@pytest.mark.parametrize("case", LENGTHS)
def test_cross_kernel(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    lengths, others = (torch.tensor(numbers) for numbers in LENGTHS[case])
    tokens, keys = int(lengths.sum()) + 5, int(others.sum()) + 70
    shapes = (tokens, DIM), (keys, DIM), (DIM, DIM), (DIM,), (2 * DIM, DIM), (2 * DIM,)
    spans = spans_between(lengths, others, tokens, keys)
    check_kernel(monkeypatch, cross_attention, spans, *shapes, twice=True)
