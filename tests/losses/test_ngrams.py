"""Losses of expected n-grams against the enumeration of all that a model can say."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.losses.linear_softmax import Layer
from oaxe.losses.overlap import _overlap, layer_overlap
from tests.losses.test_dag import links_of
from tests.losses.test_lattice import BLANK, VOCAB, outputs_of_ctc, outputs_of_graph

Outputs = list[tuple[tuple[int, ...], Tensor]]


def ngrams(words: Any, n: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def expectations(outputs: Outputs, target: list[int], n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Clipped matches, number of n-grams and length, on average."""
    matched = torch.zeros((), dtype=torch.float64)
    for ngram, most in ngrams(target, n).items():
        counts = [p * ngrams(said, n)[ngram] for said, p in outputs]
        matched = matched + torch.stack(counts).sum().clamp(max=most)
    number = torch.stack([p * ngrams(said, n).total() for said, p in outputs]).sum()
    return matched, number, torch.stack([p * len(said) for said, p in outputs]).sum()


def dag_oracle(logits: Tensor, links: Tensor, target: list[int], n: int) -> Tensor:
    if len(target) < n:
        return 0 * logits.sum()
    matched, number, length = expectations(outputs_of_graph(logits, links), target, n)
    brevity = (1 - len(target) / length).clamp(max=0).exp()
    return len(target) * (1 - brevity * matched / number)


def ctc_oracle(logits: Tensor, target: list[int], n: int) -> Tensor:
    if len(target) < n:
        return 0 * logits.sum()
    matched, number, _ = expectations(outputs_of_ctc(logits), target, n)
    return len(target) * (1 - 2 * matched / (number + len(target) - n + 1))


def check_equal(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-9)
    weight = torch.rand_like(ours)
    for one, other in zip(
        torch.autograd.grad((ours * weight).sum(), inputs, retain_graph=True),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-7)


# Bigrams twice, a word in a row, a short one, and one that is longer than any output.
TARGETS = [[0, 1, 0, 1], [1, 1, 1, 0], [1, -100, -100, 0], [-100, 0, -100, -100]]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_graphs_against_all_outputs(n: int) -> None:
    """Of five vertices and of four; sharp ones, so that counts are clipped."""
    target, sharpness = torch.tensor(TARGETS), torch.tensor([0.0, 3.0, 1.0, 1.0]).double()
    logits = torch.randn(4, 5, VOCAB, dtype=torch.float64)
    logits[:, :, 1] += sharpness.unsqueeze(1)
    scores = torch.randn(4, 5, 5, dtype=torch.float64).requires_grad_()
    mask = torch.arange(5) < torch.tensor([[5], [5], [4], [4]])
    later = torch.ones(5, 5, dtype=torch.bool).triu(1) & mask.unsqueeze(1)
    links = scores.masked_fill(~later, -1e9).log_softmax(-1).masked_fill(~later, -torch.inf)
    logits.requires_grad_()
    ours = oaxe.dag_ngram_loss(logits, links, target, n=n, logit_mask=mask, reduction="none")
    theirs = []
    for b in range(4):
        size, words = int(mask[b].sum()), [w for w in TARGETS[b] if w >= 0]
        theirs.append(dag_oracle(logits[b, :size], links[b, :size, :size], words, n))
    check_equal(ours, torch.stack(theirs), logits, scores)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_ctc_against_all_outputs(n: int, masked: bool) -> None:
    target = torch.tensor(TARGETS)
    logits = torch.randn(4, 6, VOCAB, dtype=torch.float64)
    logits[1, ::2, 1] += 6  # more often than in the target
    logits[1, 1::2, BLANK] += 6
    logits.requires_grad_()
    mask = torch.rand(4, 6) < 0.7 if masked else torch.ones(4, 6, dtype=torch.bool)
    mask[2, 2:] = False  # shorter than its target
    ours = oaxe.ctc_ngram_loss(logits, target, blank=BLANK, n=n, logit_mask=mask, reduction="none")
    theirs = [
        ctc_oracle(logits[b][mask[b]], [w for w in TARGETS[b] if w >= 0], n) for b in range(4)
    ]
    check_equal(ours, torch.stack(theirs), logits)


def test_counts_are_clipped() -> None:
    """Five bigrams, all of the one that the target has once: precision is a fifth, not one."""
    logits = torch.eye(3)[[0, 0, 0, 0, 0, 0]].unsqueeze(0) * 99
    links = torch.full((1, 6, 6), -torch.inf)
    links[0, range(5), range(1, 6)] = 0.0
    loss = oaxe.dag_ngram_loss(logits, links, torch.tensor([[0, 0]]), reduction="none")
    assert loss.item() == pytest.approx(2 * (1 - 1 / 5))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_graph_that_says_the_target_has_no_loss(n: int) -> None:
    target = torch.tensor([[0, 1, 1, 2, 0, 1]])
    links = torch.full((1, 6, 6), -torch.inf)
    links[0, range(5), range(1, 6)] = 0.0
    logits = F.one_hot(target, 3) * 99.0
    assert oaxe.dag_ngram_loss(logits, links, target, n=n).item() == pytest.approx(0, abs=1e-6)
    # Half of it, said with full precision, pays for its brevity.
    loss = oaxe.dag_ngram_loss(logits[:, :3], links[:, :3, :3], target, n=n)
    assert loss.item() == pytest.approx(1 - torch.tensor(-1.0).exp().item(), abs=1e-6)


def test_ctc_that_says_the_target_has_no_loss() -> None:
    labels = torch.tensor([[0, 2, 1, 1, 2, 1, 0]])
    logits = F.one_hot(labels, 3) * 99.0
    for n in (1, 2):
        loss = oaxe.ctc_ngram_loss(logits, torch.tensor([[0, 1, 1, 0]]), blank=BLANK, n=n)
        assert loss.item() == pytest.approx(0, abs=1e-6)
        reordered = oaxe.ctc_ngram_loss(logits, torch.tensor([[1, 0, 0, 1]]), blank=BLANK, n=n)
        assert (reordered.item() == pytest.approx(0, abs=1e-6)) == (n == 1)


def test_logits_and_links_may_differ_in_precision() -> None:
    logits, links = torch.randn(2, 5, VOCAB, dtype=torch.float64), links_of(2, 5)
    target = torch.tensor([[0, 1, 0], [1, 1, 2]])
    expected = oaxe.dag_ngram_loss(logits, links, target)
    for given in ((logits.float(), links), (logits, links.float())):
        found = oaxe.dag_ngram_loss(*given, target)
        assert found.dtype == torch.float64
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_mean_and_sum() -> None:
    logits, target = torch.randn(3, 6, VOCAB), torch.tensor([[0, 1, 0], [1, 0, -100], [1, 1, 0]])
    options: Any = {"blank": BLANK}
    each = oaxe.ctc_ngram_loss(logits, target, reduction="none", **options)
    total = oaxe.ctc_ngram_loss(logits, target, reduction="sum", **options)
    torch.testing.assert_close(total, each.sum())
    torch.testing.assert_close(oaxe.ctc_ngram_loss(logits, target, **options), each.sum() / 8)
    alone = oaxe.ctc_ngram_loss(logits[1:2], target[1:2, :2], **options)
    assert each[1].item() == pytest.approx(2 * alone.item())  # a share of its words


def test_impossible_words_and_empty_rows_leave_gradients_finite() -> None:
    logits = torch.randn(3, 4, VOCAB)
    logits[0, :, 0] = logits[1, 1, BLANK] = -torch.inf
    logits.requires_grad_()
    target = torch.tensor([[0, 1], [0, 1], [-100, -100]])
    mask = torch.tensor([4, 4, 0]).unsqueeze(1) > torch.arange(4)
    links = links_of(3, 4).float().requires_grad_()
    losses = [
        oaxe.ctc_ngram_loss(logits, target, blank=BLANK, logit_mask=mask, reduction="none"),
        oaxe.dag_ngram_loss(logits, links, target, logit_mask=mask, reduction="none"),
    ]
    for loss in losses:
        assert loss.isfinite().all()
        assert loss[2] == 0
        for gradient in torch.autograd.grad(loss.sum(), [logits, links], materialize_grads=True):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (2, 1, 1)])
def test_empty_batches_and_sentences(shape: tuple[int, int, int]) -> None:
    batch, positions, words = shape
    hidden = torch.randn(batch, positions, 5, requires_grad=True)
    embedding, target = torch.randn(VOCAB, 5), torch.zeros(batch, words, dtype=torch.long)
    links = links_of(batch, positions) if positions else torch.zeros(batch, 0, 0)
    for loss in (
        oaxe.linear_ctc_ngram_loss(hidden, embedding, target, blank=BLANK, reduction="none"),
        oaxe.linear_dag_ngram_loss(hidden, embedding, links, target, reduction="none"),
    ):
        assert loss.shape == (batch,)
        assert loss.isfinite().all()
        assert torch.autograd.grad(loss.sum(), hidden)[0].shape == hidden.shape


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_overlap_of_neighbours(
    with_bias: bool, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(oaxe.losses.linear_softmax.CHUNK_BYTES, "cpu", 3 * 7 * 8)
    hidden = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    embedding = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True) if with_bias else None
    mask = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]) > 0 if masked else None
    inputs = [x for x in (hidden, embedding, bias) if x is not None]

    def both(*given: Tensor) -> tuple[Tensor, Tensor]:
        layer = Layer(given[0], given[1], given[2] if with_bias else None)
        return layer_overlap(layer, 2, mask, 8 if masked else None)

    logsumexp, overlap = both(*inputs)
    logits = F.linear(hidden, embedding, bias)
    said = logits.softmax(-1) * (torch.arange(7) != 2)
    for b in range(2):
        kept = [t for t in range(5) if mask is None or mask[b, t]]
        assert overlap[b, kept[0]] == 0
        for before, t in pairwise(kept):
            torch.testing.assert_close(overlap[b, t], said[b, before] @ said[b, t])
        torch.testing.assert_close(logsumexp[b, kept], logits[b, kept].logsumexp(-1))
    assert torch.autograd.gradcheck(both, inputs)


def test_too_many_positions_for_the_capacity_are_noticed() -> None:
    hidden, target = torch.randn(2, 5, 4), torch.tensor([[0, 1], [1, 0]])
    given: Any = {"blank": BLANK, "logit_mask": torch.ones(2, 5, dtype=torch.bool)}
    loss = oaxe.linear_ctc_ngram_loss(hidden, torch.randn(3, 4), target, capacity=9, **given)
    assert loss.isnan()


def test_the_operator_is_registered_correctly() -> None:
    hidden = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    embedding = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True)
    linked = torch.tensor([0, 1, 1, 0, 1, 1]) > 0
    torch.library.opcheck(_overlap, (hidden, embedding, bias, linked, 2))


def test_rejects_wrong_n() -> None:
    logits, target, links = torch.zeros(1, 4, 3), torch.tensor([[0, 1]]), torch.zeros(1, 4, 4)
    with pytest.raises(ValueError, match="at least one word, got n = 0"):
        oaxe.dag_ngram_loss(logits, links, target, n=0)
    with pytest.raises(ValueError, match="n must be 1 or 2 for CTC, got 3"):
        oaxe.ctc_ngram_loss(logits, target, blank=2, n=3)


def test_graphs_that_are_shorter_than_an_ngram_have_no_gradient() -> None:
    """Nor is it infinite, in whatever target."""
    logits = torch.randn(5, 1, 2, requires_grad=True)
    links, target = torch.full((5, 1, 1), -torch.inf), torch.randint(2, (5, 8))
    losses = oaxe.dag_ngram_loss(logits, links, target, reduction="none")
    assert losses.tolist() == [8.0] * 5
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient.eq(0).all()
