"""Graphs that are small enough to list all they can say."""

import math
from collections import defaultdict
from itertools import combinations, pairwise, product

import pytest
import torch
from torch import Tensor

from oaxe.search.graph import Graph, step_by_step
from oaxe.search.graph_beam import prefix_beam
from oaxe.search.ngrams import Fluency
from oaxe.search.one_pass import hypotheses
from tests.search.fluency import fluency_of, small_lm

ALL = 10_000  # a beam that leaves nothing out


def random_graph(*sizes: int, n_words: int = 2, vocab: int = 3, limit: int | None = None) -> Graph:
    """Graphs of so many vertices, whose words are few, so that paths say the same."""
    n = max(sizes)
    last = torch.tensor(sizes).unsqueeze(1) - 1
    vertex = torch.arange(n)
    linked = (vertex > vertex.unsqueeze(1)) & (vertex <= last).unsqueeze(1)
    links = (3 * torch.randn(len(sizes), n, n)).masked_fill(~linked, -math.inf).log_softmax(2)
    words = torch.rand(len(sizes), n, vocab).argsort(2)[:, :, :n_words] + 8
    log_probs = torch.randn(len(sizes), n, n_words).log_softmax(2)
    says = ((vertex > 0) & (vertex < last)).unsqueeze(2)
    limits = last if limit is None else torch.full_like(last, limit)
    return Graph(
        words * says,
        log_probs.where(says, 0.0).double(),
        links.nan_to_num(nan=-math.inf, neginf=-math.inf).double(),
        last,
        limits,
        n - 1,
    )


def all_texts(graph: Graph, row: int) -> dict[tuple[int, ...], float]:
    """The probability of each, the sum of those of its paths."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    last, n_words = int(graph.last[row]), graph.words.shape[2]
    for length in range(min(last, int(graph.limit[row]))):
        for inner in combinations(range(1, last), length):
            path = [0, *inner, last]
            links = sum(graph.links[row, a, b].item() for a, b in pairwise(path))
            for ranks in product(range(n_words), repeat=length):
                at = list(zip(inner, ranks, strict=True))
                words = sum(graph.log_probs[row, v, k].item() for v, k in at)
                found[tuple(int(graph.words[row, v, k]) for v, k in at)] += math.exp(links + words)
    return found


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0, 2.0])
def test_the_beam_finds_the_best_of_all_texts(penalty: float) -> None:
    graph = random_graph(6, 2, 5, 6, 3)
    found = hypotheses(*prefix_beam(graph, beam=ALL, length_penalty=penalty), batch=5)
    lengths = set()
    for row, ours in enumerate(found):
        texts = all_texts(graph, row)
        scores = {y: math.log(p) / (len(y) + 1) ** penalty for y, p in texts.items()}
        expected = sorted(scores, key=lambda text: -scores[text])
        assert [tuple(one.tokens) for one in ours] == expected
        assert [one.score for one in ours] == pytest.approx([scores[y] for y in expected])
        for one in ours:
            text = tuple(one.tokens)
            assert one.log_probability == pytest.approx(math.log(texts[text]))
            assert one.length == len(text) + 1
        lengths.add(len(expected[0]))
    assert len(lengths) > 1


@pytest.mark.parametrize("penalty", [0.5, 1.0])
def test_a_language_model_has_its_say(penalty: float) -> None:
    graph, lm = random_graph(6, 2, 5), small_lm()
    given = {"length_penalty": penalty, "fluency": Fluency(lm, 0.7)}
    found = hypotheses(*prefix_beam(graph, beam=ALL, **given), batch=3)  # type: ignore[arg-type]
    for row, ours in enumerate(found):
        texts = all_texts(graph, row)
        scores = {y: (math.log(p) + 0.7 * fluency_of(lm, y)) / (len(y) + 1) ** penalty
                  for y, p in texts.items()}  # fmt: skip
        expected = sorted(scores, key=lambda text: -scores[text])
        assert [one.score for one in ours] == pytest.approx([scores[y] for y in expected], rel=1e-5)
        assert tuple(ours[0].tokens) == expected[0]
        assert ours[0].log_probability == pytest.approx(math.log(texts[expected[0]]), rel=1e-5)
    narrow = hypotheses(*prefix_beam(graph, beam=2, **given), batch=3)  # type: ignore[arg-type]
    assert [ours[0].score for ours in narrow] == pytest.approx(
        [ours[0].score for ours in found], abs=0.3
    )


def test_all_texts_together_are_certain_and_limits_cut_them() -> None:
    graph = random_graph(6, 4, n_words=3)
    scores = prefix_beam(graph, beam=ALL, length_penalty=0.0)[2].view(2, -1)
    assert scores.exp().sum(1).tolist() == pytest.approx([1.0, 1.0])
    short = graph._replace(limit=torch.tensor([[3], [1]]))
    for row, ours in enumerate(
        hypotheses(*prefix_beam(short, beam=ALL, length_penalty=1.0), batch=2)
    ):
        assert {tuple(one.tokens) for one in ours} == set(all_texts(short, row))
        assert max(one.length for one in ours) == (3, 1)[row]


def test_a_narrow_beam_keeps_the_likeliest_prefixes() -> None:
    """By a plain search over dictionaries."""
    graph = random_graph(8, n_words=3, vocab=4)
    links = graph.links[0].exp().nan_to_num()
    last, beam = 7, 3
    prefixes: dict[tuple[int, ...], Tensor] = {(): torch.eye(8, dtype=torch.float64)[0]}
    finished = {}
    for _ in range(7):
        extended: dict[tuple[int, ...], Tensor] = {}
        for words, where in prefixes.items():
            after = where @ links
            finished[words] = after[last].log().item() / (len(words) + 1)
            for v in range(1, last):
                for k in range(3):
                    text = (*words, int(graph.words[0, v, k]))
                    extended.setdefault(text, torch.zeros(8, dtype=torch.float64))
                    extended[text][v] += after[v] * graph.log_probs[0, v, k].exp()
        best = sorted(extended, key=lambda text: -extended[text].sum())[:beam]
        prefixes = {text: extended[text] for text in best if extended[text].sum() > 0}
    (ours,) = hypotheses(*prefix_beam(graph, beam=beam, length_penalty=1.0), batch=1)
    expected = sorted(finished, key=lambda text: -finished[text])[:beam]
    assert [tuple(one.tokens) for one in ours] == expected
    assert [one.score for one in ours] == pytest.approx([finished[text] for text in expected])


def test_equal_words_add_up() -> None:
    """No path says 9 with as high a probability as one says 8; together they do."""
    links = torch.full((1, 5, 5), -math.inf)
    links[0, 0, 1:4] = torch.tensor([0.4, 0.3, 0.3]).log()
    links[0, 1:4, 4] = 0.0
    words, last = torch.tensor([[[0], [8], [9], [9], [0]]]), torch.tensor([[4]])
    graph = Graph(words, torch.zeros(1, 5, 1), links, last, last, 4)
    (found,) = hypotheses(*prefix_beam(graph, beam=2, length_penalty=1.0), batch=1)
    assert [one.tokens for one in found] == [[9], [8]]
    assert math.exp(found[0].log_probability) == pytest.approx(0.6)


def test_links_that_are_hardly_there_still_lead_to_an_end() -> None:
    links = torch.full((1, 3, 3), -math.inf)
    links[0, 0, 1:] = torch.tensor([0.0, -500.0])
    links[0, 1, 2] = -300.0
    words, last = torch.tensor([[[0], [8], [0]]]), torch.tensor([[2]])
    graph = Graph(words, torch.zeros(1, 3, 1), links, last, last, 2)
    (found,) = hypotheses(*prefix_beam(graph, beam=2, length_penalty=0.0), batch=1)
    assert all(math.isfinite(one.score) for one in found)


def test_step_by_step_weighs_words_by_what_follows() -> None:
    """The likelier link leads to the less likely word."""
    links = torch.full((1, 4, 4), -math.inf)
    links[0, 0, 1:3] = torch.tensor([0.6, 0.4]).log()
    links[0, 1, 3] = links[0, 2, 3] = 0.0
    log_probs = torch.tensor([[[0.0], [0.1], [0.9], [0.0]]]).log().nan_to_num(neginf=0.0)
    words, last = torch.tensor([[[0], [8], [9], [0]]]), torch.tensor([[3]])
    graph = Graph(words, log_probs, links, last, limit=last, steps=3)
    for weight, word, probability in ((0.0, 8, 0.06), (1.0, 9, 0.36)):
        tokens, n_tokens, _, total, _ = step_by_step(graph, weight, 1.0)
        assert tokens[0, : int(n_tokens)].tolist() == [word]
        assert total.exp().item() == pytest.approx(probability)
