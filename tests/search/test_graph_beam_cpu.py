"""The search in C and in numpy: the same translations as that on tensors, and as a list of all."""

import math
import warnings
from importlib.util import find_spec
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from oaxe.search import graph, graph_beam, graph_beam_cpu
from oaxe.search.graph_beam_cpu import Graph, How, prefix_beam
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.ngram_table import NGramTable
from oaxe.search.ngrams import Fluency, LanguageModel
from oaxe.search.one_pass import hypotheses
from oaxe.support.extras import warn_not_compiled
from tests.search.fluency import fluency_of, small_ngrams
from tests.search.test_graph import ALL, all_texts, random_graph

KINDS = ["C", "numpy"] if find_spec("oaxe.search._graph_beam") else ["numpy"]


@pytest.fixture(params=KINDS)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        without_c(monkeypatch)


def without_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_beam_cpu, "_graph_beam", None)
    monkeypatch.setattr(graph_beam_cpu, "warn_not_compiled", lambda instead: None)


def on_cpu(of: graph.Graph) -> Graph:
    words, log_probs, links, last, limit = (part.numpy() for part in of[:5])
    single = log_probs.astype(np.float32), links.astype(np.float32)
    return Graph(words, *single, last[:, 0], limit[:, 0])


def check_same(
    found: list[list[Hypothesis]], expected: list[list[Hypothesis]], tolerance: float
) -> None:
    """Of equal scores any may come first, and be the last that is kept."""
    for ours, theirs in zip(found, expected, strict=True):
        scores = [one.score for one in theirs]
        assert [one.score for one in ours] == pytest.approx(scores, abs=tolerance)
        same_text = {tuple(one.tokens): one for one in theirs}
        assert len({tuple(one.tokens) for one in ours}) == len(same_text) == len(ours)
        for one in ours:
            if one.score > scores[-1] + tolerance:
                other = same_text[tuple(one.tokens)]
                assert one.score == pytest.approx(other.score, abs=tolerance)
                assert one.log_probability == pytest.approx(other.log_probability, abs=tolerance)
                assert one.length == other.length


@pytest.mark.usefixtures("_kind")
@pytest.mark.parametrize("order", [0, 1, 2, 4])
@pytest.mark.parametrize("weight", [0.6, -0.2])
@pytest.mark.parametrize("beam", [1, 3, 20, 200])
@pytest.mark.parametrize("limit", [None, 4])
def test_finds_what_is_found_on_tensors(
    order: int, weight: float, beam: int, limit: int | None
) -> None:
    on_tensors = random_graph(9, 2, 8, 11, 3, n_words=3, vocab=4, limit=limit)
    ngrams = small_ngrams(order=order) if order else None
    fluency = Fluency(LanguageModel(ngrams) if ngrams else None, weight)
    for penalty in (0.0, 0.7, 2.0):
        given = {"beam": beam, "length_penalty": penalty, "fluency": fluency}
        expected = hypotheses(*graph_beam.prefix_beam(on_tensors, **given), batch=5)  # type: ignore[arg-type]
        how = How(beam, penalty, NGramTable(ngrams) if ngrams else None, weight)
        found = prefix_beam(on_cpu(on_tensors), how)
        check_same(found, expected, 1e-4)
        assert [one.tokens for one in found[1]] == [[]]  # two vertices say nothing
        assert max(map(len, found)) == beam or beam == 200


@pytest.mark.skipif("C" not in KINDS, reason="needs the compiled part")
@pytest.mark.parametrize("order", [0, 3])
def test_c_finds_what_numpy_finds(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ngrams = small_ngrams(order=order) if order else None
    table = NGramTable(ngrams) if ngrams else None
    given = on_cpu(random_graph(40, 17, 33, n_words=3, vocab=4))
    paths = set()
    for how in (How(5, 1.0, table, 0.3), How(20, 3.0, table, 0.5)):
        compiled = prefix_beam(given, how)
        with monkeypatch.context() as context:
            without_c(context)
            plain = prefix_beam(given, how)
        check_same(compiled, plain, 1e-9)
        for ours, theirs in zip(compiled, plain, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert one.tokens == other.tokens
                assert one.positions is not None
                assert other.positions is not None
                assert one.positions.path == other.positions.path
                paths.add(tuple(one.positions.path or ()))
    assert len(paths) > 15


@pytest.mark.usefixtures("_kind")
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_finds_all_texts_in_their_order(penalty: float, weight: float) -> None:
    """By a list of all paths."""
    on_tensors = random_graph(6, 2, 5, 6, 3)
    ngrams = small_ngrams()
    lm, table = LanguageModel(ngrams), NGramTable(ngrams)
    found = prefix_beam(on_cpu(on_tensors), How(ALL, penalty, table if weight else None, weight))
    for row, ours in enumerate(found):
        texts = all_texts(on_tensors, row)
        scores = {y: (math.log(p) + weight * fluency_of(lm, y)) / (len(y) + 1) ** penalty
                  for y, p in texts.items()}  # fmt: skip
        expected = sorted(scores, key=lambda text: -scores[text])
        assert [tuple(one.tokens) for one in ours] == expected
        assert [one.score for one in ours] == pytest.approx([scores[y] for y in expected], abs=1e-5)
        for one in ours:
            total = math.log(texts[tuple(one.tokens)])
            assert one.log_probability == pytest.approx(total, abs=1e-5)


@pytest.mark.usefixtures("_kind")
def test_paths_are_the_likeliest_of_all() -> None:
    given = random_graph(7, n_words=2, vocab=3)
    words, log_probs, links = (part[0].numpy() for part in given[:3])
    best: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}
    for length in range(6):
        for path in combinations(range(1, 6), length):
            total = sum(links[a, b] for a, b in pairwise((0, *path, 6)))
            for ranks in np.ndindex(*[2] * length):
                text = tuple(words[v, k] for v, k in zip(path, ranks, strict=True))
                said = sum(log_probs[v, k] for v, k in zip(path, ranks, strict=True))
                best[text] = max(best.get(text, (-math.inf, ())), (total + said, path))
    (found,) = prefix_beam(on_cpu(given), How(ALL))
    assert len(found) == len(best)
    for one in found:
        said = one.positions
        assert said is not None
        assert said.path is not None
        _, path = best[tuple(one.tokens)]
        assert [1 + at for at in said.path] == list(path)
        assert said.tokens[said.kept].tolist() == one.tokens
        assert said.fates().count("kept") == len(one.tokens)
        for at, (token, log_prob) in enumerate(zip(said.tokens, said.log_probs, strict=True), 1):
            rank = words[at].tolist().index(token)
            assert log_prob == pytest.approx(log_probs[at, rank])
            assert rank == 0 or at in path


@pytest.mark.usefixtures("_kind")
def test_a_graph_of_one_path() -> None:
    """Of all links one is left: from each vertex to the next."""
    n, never = 6, -math.inf
    links = np.full((1, n, n), never, np.float32)
    links[0, range(n - 1), range(1, n)] = 0.0
    words = np.array([[[0, 0], [8, 9], [8, 9], [9, 8], [8, 9], [0, 0]]])
    log_probs = np.tile(np.array([0.0, never], np.float32), (1, n, 1))
    last = np.array([n - 1])
    for beam in (1, 50):
        ((ours,),) = prefix_beam(Graph(words, log_probs, links, last, last), How(beam))
        assert (ours.tokens, ours.log_probability, ours.length) == ([8, 8, 9, 8], 0.0, 5)
        assert ours.positions is not None
        assert ours.positions.path == [0, 1, 2, 3]
    assert prefix_beam(Graph(words, log_probs, links, last, last - 1), How(9)) == [[]]  # too long


@pytest.mark.usefixtures("_kind")
def test_of_equal_scores_the_smallest_words_come_first() -> None:
    n = 5
    links = np.full((1, n, n), -math.inf, np.float32)
    links[0, 0, 1 : n - 1], links[0, 1 : n - 1, n - 1] = math.log(1 / 3), 0.0
    words = np.array([[[0, 0], [13, 9], [12, 10], [11, 8], [0, 0]]])
    log_probs = np.full((1, n, 2), math.log(0.5), np.float32)
    last = np.array([n - 1])
    (found,) = prefix_beam(Graph(words, log_probs, links, last, last), How(4))
    assert [one.tokens for one in found] == [[8], [9], [10], [11]]
    assert len({one.score for one in found}) == 1


@pytest.mark.usefixtures("_kind")
def test_links_that_are_hardly_there_still_lead_to_an_end() -> None:
    links = np.full((1, 3, 3), -math.inf, np.float32)
    links[0, 0, 1:], links[0, 1, 2] = (0.0, -500.0), -300.0
    words, last = np.array([[[0], [8], [0]]]), np.array([2])
    nothing = np.zeros((1, 3, 1), np.float32)
    (found,) = prefix_beam(Graph(words, nothing, links, last, last), How(2, 0.0))
    assert sorted(one.tokens for one in found) == [[], [8]]
    assert [one.score for one in found] == pytest.approx([-60.0, -60.0])


def test_long_graphs_do_not_vanish() -> None:
    """Of a path of 200 words or more: its probability is far below what a float can be."""
    given = random_graph(400, n_words=2, vocab=50)
    vertex = torch.arange(400)
    near = vertex - vertex.unsqueeze(1) <= 2
    given = given._replace(links=given.links.where(near, -math.inf))
    expected = hypotheses(*graph_beam.prefix_beam(given, beam=3, length_penalty=1.0), batch=1)
    found = prefix_beam(on_cpu(given), How(3))
    check_same(found, expected, 1e-4)
    assert found[0][0].log_probability < -200
    assert found[0][0].positions is not None


def test_says_once_that_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_beam_cpu, "_graph_beam", None)
    warn_not_compiled.cache_clear()
    given = on_cpu(random_graph(4))
    with pytest.warns(UserWarning, match="beam search is in Python"):
        prefix_beam(given, How(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prefix_beam(given, How(2))
