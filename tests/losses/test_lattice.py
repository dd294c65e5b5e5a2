"""What a lattice says on average, against the enumeration of all that it can say."""

from itertools import combinations, groupby, product

import pytest
import torch
from torch import Tensor

from oaxe.losses.ctc import ctc_expected_bigrams, ctc_expected_length
from oaxe.losses.dag import dag_arrivals, dag_moves
from oaxe.losses.lattice import expected_ngrams
from tests.losses.test_dag import links_of

VOCAB, BLANK = 3, 2


def expected_counts(outputs: list[tuple[tuple[int, ...], Tensor]], ngrams: Tensor) -> Tensor:
    """How often each of ``ngrams (number, n)`` is said on average."""
    n, counts = ngrams.shape[1], torch.zeros(len(ngrams), dtype=torch.float64)
    for said, probability in outputs:
        for i in range(len(said) - n + 1):
            counts = counts + probability * (ngrams == torch.tensor(said[i : i + n])).all(1)
    return counts


def dag_expected_ngrams(emissions: Tensor, links: Tensor, n: int) -> Tensor:
    """As the loss computes them, of log-probabilities ``(batch, words, vertices)``."""
    moves = dag_moves(links, None)
    return expected_ngrams(dag_arrivals(links), moves, emissions.exp(), n)


def check_equal(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-9)
    weight = torch.rand_like(ours)
    for one, other in zip(
        torch.autograd.grad((ours * weight).sum(), inputs, retain_graph=True),
        torch.autograd.grad((theirs * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-7)


def outputs_of_graph(logits: Tensor, links: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
    """Every output of every path of one sentence, with its probability."""
    probability, moves, last = logits.softmax(-1), links.exp(), len(links) - 1
    found = []
    for n in range(last):
        for inner in combinations(range(1, last), n):
            path = [0, *inner, last] if last else [0]
            of_path = moves[path[:-1], path[1:]].prod()
            for words in product(range(VOCAB), repeat=len(path)):
                found.append((words, of_path * probability[path, list(words)].prod()))
    return found


def outputs_of_ctc(logits: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
    probability = logits.softmax(-1)
    found = []
    for labels in product(range(VOCAB), repeat=len(logits)):
        said = tuple(label for label, _ in groupby(labels) if label != BLANK)
        found.append((said, probability[range(len(logits)), labels].prod()))
    return found


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ngrams_of_graphs(n: int) -> None:
    logits = torch.randn(2, 5, VOCAB, dtype=torch.float64, requires_grad=True)
    scores = links_of(2, 5).requires_grad_()
    links = scores[:, :-1].log_softmax(-1)  # the gradient is that of links that add up to 1
    links = torch.cat([links, scores[:, -1:]], 1)
    target = torch.tensor([[0, 1, 1, 2, 0, 1], [2, 2, 2, 0, 0, 1]])
    columns = target.unsqueeze(1).expand(-1, 5, -1)
    emissions = logits.log_softmax(-1).gather(2, columns).transpose(1, 2)
    ours = dag_expected_ngrams(emissions, links, n)
    theirs = torch.stack(
        [
            expected_counts(outputs_of_graph(logits[b], links[b]), target[b].unfold(0, n, 1))
            for b in range(2)
        ]
    )
    check_equal(ours, theirs, logits, scores)


def test_arrivals_and_length_of_graphs() -> None:
    logits = torch.zeros(1, 5, VOCAB, dtype=torch.float64)
    links = links_of(2, 7)
    mask = torch.arange(7).expand(2, -1) < 5
    # of five vertices: what would lead beyond is not there
    links = links.masked_fill(~mask.unsqueeze(1), -torch.inf).log_softmax(-1)
    found = dag_arrivals(links, mask)
    assert (found[:, 5:] == 0).all()
    for b in range(2):
        arrived = [1.0]
        for j in range(1, 5):
            arrived.append(sum(arrived[i] * links[b, i, j].exp().item() for i in range(j)))
        assert found[b, :5].tolist() == pytest.approx(arrived, abs=1e-12)
        said = outputs_of_graph(logits[0], links[b, :5, :5])
        length = sum(p.item() * len(y) for y, p in said)
        assert found[b].sum().item() == pytest.approx(length, abs=1e-12)
    assert found[:, 4].tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("masked", [False, True])
def test_bigrams_and_length_of_ctc(masked: bool) -> None:
    logits = torch.randn(2, 6, VOCAB, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]])
    mask = torch.ones(2, 6, dtype=torch.bool)
    if masked:
        mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 0]]) > 0
    tokens = torch.cat([target, torch.full((2, 1), BLANK)], 1)
    emissions = logits.log_softmax(-1).gather(2, tokens.unsqueeze(1).expand(-1, 6, -1))
    given_mask = mask if masked else None
    ours = ctc_expected_bigrams(emissions, target, given_mask)
    lengths = ctc_expected_length(logits, blank=BLANK, logit_mask=given_mask)
    expected = []
    for b in range(2):
        said = outputs_of_ctc(logits[b, mask[b]])
        length = torch.stack([p * len(y) for y, p in said]).sum()
        bigrams = expected_counts(said, target[b].unfold(0, 2, 1))
        expected.append(torch.cat([bigrams, length.unsqueeze(0)]))
    check_equal(torch.cat([ours, lengths.unsqueeze(1)], 1), torch.stack(expected), logits)


def test_gradients_stay_finite_where_something_is_impossible() -> None:
    logits = torch.randn(1, 4, VOCAB).masked_fill(torch.rand(1, 4, VOCAB) < 0.3, -torch.inf)
    logits[0, :, 0] = 0.5
    logits[0, 1, BLANK] = -torch.inf
    logits.requires_grad_()
    tokens = torch.tensor([0, 1, BLANK])
    counts = ctc_expected_bigrams(logits.log_softmax(-1)[:, :, tokens], tokens[None, :2])
    assert torch.autograd.grad(counts.sum(), logits)[0].isfinite().all()
    links = links_of(1, 4).float()
    links[0, 0, 1] = -torch.inf
    links.requires_grad_()
    emissions = torch.eye(4)[[0, 3]].log().unsqueeze(0).requires_grad_()
    counts = dag_expected_ngrams(emissions, links, 2)
    for gradient in torch.autograd.grad(counts.sum(), (emissions, links)):
        assert gradient.isfinite().all()


def test_autocast_rounds_nothing() -> None:
    emissions, links = torch.randn(2, 4, 6).log_softmax(1), links_of(2, 6).float()
    expected = dag_expected_ngrams(emissions, links, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert dag_expected_ngrams(emissions, links, 3).equal(expected)


def test_no_ngram_is_longer_than_the_target() -> None:
    emissions, links = torch.zeros(2, 2, 4), torch.zeros(2, 4, 4)
    assert dag_expected_ngrams(emissions, links, 3).shape == (2, 0)
    with pytest.raises(ValueError, match="at least one word"):
        expected_ngrams(torch.ones(2, 4), links, emissions, 0)
