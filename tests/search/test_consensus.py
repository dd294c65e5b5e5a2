"""Samples: by how often they are drawn, and by an n-gram F over counters."""

import math
from collections import Counter

import pytest
import torch

from oaxe.search.consensus import drawn_from, generator_of, likeness, ranked
from oaxe.search.graph import Graph, sampled_paths
from oaxe.search.words import sampled_words
from oaxe.systems import System
from oaxe.text.symbols import PAD
from tests.models import hidden_states, micro, random_batch
from tests.search.test_graph import all_texts, random_graph


def plain_f(a: list[int], b: list[int]) -> float:
    found = []
    for n in range(1, 5):
        one, other = (
            Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1)) for text in (a, b)
        )
        if one or other:
            matches = sum((one & other).values())
            found.append(2 * matches / (one.total() + other.total()))
    return sum(found) / len(found) if found else 1.0


def test_likeness_is_that_of_counters() -> None:
    batch, samples, longest = 3, 7, 9
    tokens = torch.randint(7, 10, (batch, samples, longest))  # few words: many repeats
    lengths = torch.randint(0, longest + 1, (batch, samples))
    lengths[0, :3], lengths[1, 0] = torch.tensor([0, 0, 1]), longest
    found = likeness(tokens, lengths)
    for b in range(batch):
        texts = [row[:n] for row, n in zip(tokens[b].tolist(), lengths[b].tolist(), strict=True)]
        expected = [[plain_f(one, other) for other in texts] for one in texts]
        torch.testing.assert_close(found[b], torch.tensor(expected))


@pytest.mark.parametrize("longest", [1, 2])
def test_short_texts(longest: int) -> None:
    tokens = torch.full((1, 2, longest), 7)
    assert likeness(tokens, torch.tensor([[1, longest]])).min() == (1.0 if longest == 1 else 1 / 3)


def test_the_one_most_like_the_others_is_the_best() -> None:
    tokens = torch.tensor([[7, 8, 9, 9], [7, 8, 10, 9], [11, 11, 11, 11], [7, 8, 10, 10]])
    n_tokens, anything = torch.full((4,), 4), torch.zeros(4)
    scores = ranked((tokens, n_tokens, anything, anything, n_tokens), 1)[2]
    texts = tokens.tolist()
    expected = [sum(plain_f(one, other) for other in texts) / 4 for one in texts]
    assert scores.tolist() == pytest.approx(expected)
    assert scores.argmax() == 1


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_follow_their_probabilities(temperature: float) -> None:
    scores = torch.tensor([0.1, 0.6, 0.3, 0.0]).log()
    generator = generator_of(torch.device("cpu"))
    found = drawn_from(scores.expand(20_000, -1), temperature, generator)
    expected = (scores / temperature).softmax(0)
    torch.testing.assert_close(found.bincount(minlength=4) / 20_000, expected, atol=0.015, rtol=0)


def test_paths_are_drawn_as_often_as_they_are_likely() -> None:
    graph, n = random_graph(5, n_words=2), 20_000
    which = torch.multinomial(graph.log_probs[0].exp(), n, replacement=True)  # (vertices, n)
    drawn = Graph(
        graph.words[0].gather(1, which).unsqueeze(0),
        graph.log_probs[0].gather(1, which).unsqueeze(0),
        *graph[2:],
    )
    tokens, n_tokens, _, totals, lengths = sampled_paths(drawn, 1.0, torch.Generator())
    texts = [tuple(row[:k]) for row, k in zip(tokens.tolist(), n_tokens.tolist(), strict=True)]
    counts, expected = Counter(texts), all_texts(graph, 0)
    for text, probability in expected.items():
        assert counts[text] / n == pytest.approx(probability, abs=0.02)
    assert counts.keys() <= expected.keys()
    assert lengths.tolist() == (n_tokens + 1).tolist()
    certain = [text for text in expected if len(text) == 0]
    for text, total in zip(texts, totals.tolist(), strict=True):
        assert total <= math.log(expected[text]) + 1e-6  # one of its paths
        if text in certain:
            assert total == pytest.approx(math.log(expected[text]))


def test_paths_are_cut_at_their_limit() -> None:
    graph = random_graph(9, n_words=3)._replace(limit=torch.tensor([[3]]))
    n_tokens = sampled_paths(graph, 1.0, torch.Generator())[1]
    assert n_tokens.max() <= 2


@torch.no_grad()
def test_words_are_drawn_from_the_model() -> None:
    model, n = micro("ctc", "pre").transformer, 4_000
    source = random_batch(2)
    hidden = hidden_states(model, source, source)
    words, log_probs = sampled_words(
        model,
        hidden,
        n,
        may_be_blank=False,
        temperature=0.8,
        generator=torch.Generator().manual_seed(2),
    )
    logits = model.logits(hidden)
    logits[..., :7] = -math.inf
    torch.testing.assert_close(log_probs, logits.log_softmax(2).gather(2, words))
    for position in range(2):
        share = words[0, position].bincount(minlength=30) / n
        expected = (logits[0, position] / 0.8).softmax(0)
        torch.testing.assert_close(share, expected, atol=0.04, rtol=0)


@pytest.mark.parametrize("system", ["ctc", "dag"])
def test_a_system_ranks_its_samples(system: str) -> None:
    """Twice the same; and other calls in between draw nothing from its random numbers."""
    model: System = micro(system)
    source = random_batch(7, 3)
    how = model.decoding_type(method="samples", samples=9, temperature=1.0)
    found = model.translate(source, how)
    torch.rand(3)
    assert model.translate(source, how) == found
    assert len({tuple(one.tokens) for one in found[0]}) > 3
    for row, ours in zip(source, found, strict=True):
        texts = [one.tokens for one in ours]
        assert len(texts) == 9
        expected = [sum(plain_f(one, other) for other in texts) / 9 for one in texts]
        assert [one.score for one in ours] == pytest.approx(expected, abs=1e-5)
        assert expected[0] == pytest.approx(max(expected))
        assert all(word >= 7 for text in texts for word in text)
        assert max(map(len, texts)) <= 2 * (row != PAD).sum()
