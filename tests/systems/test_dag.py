"""The graph: links and loss by plain loops, paths by enumeration, glancing, and that it learns."""

import math
from itertools import combinations, groupby
from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.search.hypothesis import Hypothesis
from oaxe.search.options import DAGMethod
from oaxe.systems import Example
from oaxe.systems.dag import Decoding, Links, Model, graph_of
from oaxe.text.symbols import BOS, EOS, MASK, PAD
from oaxe.training.start import take_over
from tests.models import hidden_states, micro, random_batch
from tests.runs import same
from tests.search.test_one_pass import naive_pass
from tests.systems.digits import check_fine_tuning, exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch

METHODS: tuple[DAGMethod, ...] = ("viterbi", "beam", "lookahead", "greedy")
NOTHING = torch.tensor(0), torch.tensor(1)


def dag(**options: Any) -> Model:
    """In evaluation mode, without dropout."""
    model = micro("dag", options=options, dropout=0.0)
    assert isinstance(model, Model)
    with torch.no_grad():  # links that differ
        model.links.query.weight *= 4
    return model


def inputs_of(model: Model, sentence: Tensor) -> list[int]:
    return [BOS, *[MASK] * (model.options.vertices * len(sentence) - 2), EOS]


def naive_links(links: Links, hidden: Tensor) -> Tensor:
    """``(vertices, vertices)`` of one sentence, one vertex and one head at a time."""
    n, dim = hidden.shape
    features = torch.cat([hidden, links.vertex_positions.weight[:n]], 1)
    queries, keys = links.query(features), links.key(features)
    found = hidden.new_full((n, n), -math.inf)
    for i in range(n - 1):
        gates, total = links.gate(features[i]).softmax(0), 0.0
        for head in range(links.heads):
            part = slice(head * dim // links.heads, (head + 1) * dim // links.heads)
            scores = torch.stack([queries[i, part] @ keys[j, part] for j in range(i + 1, n)])
            total = total + gates[head] * (scores / math.sqrt(dim // links.heads)).softmax(0)
        found[i, i + 1 :] = torch.as_tensor(total).log()
    return found


def naive_graph(model: Model, sentence: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and links of one sentence without padding."""
    inputs = torch.tensor([inputs_of(model, sentence)])
    hidden = hidden_states(model.transformer, sentence[None], inputs)[0]
    return model.transformer.logits(hidden), naive_links(model.links, hidden)


def all_paths(n_vertices: int, most_words: int) -> list[list[int]]:
    """From the first vertex to the last one, over at most so many others."""
    inner = range(1, n_vertices - 1)
    found = (combinations(inner, n) for n in range(min(most_words, len(inner)) + 1))
    return [[0, *path, n_vertices - 1] for paths in found for path in paths]


def test_links_of_padded_sentences_equal_plain_loops() -> None:
    model = dag(vertices=2)
    source = random_batch(5, 2, 4)
    example = model.example(source, source)
    hidden = hidden_states(model.transformer, source, example.inputs)
    found = model.links(hidden, example.mask)
    assert found.dtype == torch.float32
    for row, sentence in enumerate(source):
        _, expected = naive_graph(model, sentence[sentence != PAD])
        n = len(expected)
        torch.testing.assert_close(found[row, :n, :n], expected, rtol=1e-4, atol=1e-4)
        assert (found[row, n:] == -math.inf).all()
        assert (found[row, :, n:] == -math.inf).all()
        assert found[row, : n - 1].exp().sum(1).tolist() == pytest.approx([1] * (n - 1))


def test_loss_is_the_sum_of_all_paths_that_say_the_target() -> None:
    model = dag(vertices=3)
    source, target = random_batch(3, 2), torch.tensor([[8, 9, 8], [10, PAD, PAD]])
    loss, statistics = model(model.example(source, target), progress_of(model))
    total = torch.zeros(())
    for sentence, words in zip(source, target, strict=True):
        logits, links = naive_graph(model, sentence[sentence != PAD])
        log_probs = logits.log_softmax(1)
        said = [BOS, *words[words != PAD].tolist(), EOS]
        paths = [p for p in all_paths(len(logits), len(said) - 2) if len(p) == len(said)]
        scores = [log_probs[p, said].sum() + links[p[:-1], p[1:]].sum() for p in paths]
        total = total - torch.stack(scores).logsumexp(0)
    torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-5)
    weights = [*model.parameters()]
    ours, theirs = (torch.autograd.grad(x, weights, materialize_grads=True) for x in (loss, total))
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)
    assert [number.item() for number in statistics["loss"]] == [loss.item(), 8]  # BOS and EOS, too


@torch.no_grad()
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_reveals_words_of_the_best_path(share: float) -> None:
    model = dag(vertices=3).train()
    source = random_batch(3, 2, 3, 1)
    target = torch.tensor([[8, 9, 8, 11], [10, 9, PAD, PAD], [12, 13, 14, PAD], [8, 9, PAD, PAD]])
    example = model.example(source, target)
    encoded = model.transformer.encode(source)
    inputs, seen = model.glance(example, encoded, torch.tensor(share, dtype=torch.float64))
    n_wrong = n_revealed = 0
    for row in range(3):
        sentence, words = source[row][source[row] != PAD], target[row][target[row] != PAD]
        logits, links = naive_graph(model, sentence)
        said = [BOS, *words.tolist(), EOS]
        paths = [p for p in all_paths(len(logits), len(words)) if len(p) == len(said)]
        log_probs = logits.log_softmax(1)
        path = max(
            paths, key=lambda p: float(log_probs[p, said].sum() + links[p[:-1], p[1:]].sum())
        )
        best, _ = naive_pass(model.transformer, sentence.tolist(), inputs_of(model, sentence))
        wrong = sum(best[v] != word for v, word in zip(path[1:-1], words.tolist(), strict=True))
        given = inputs_of(model, sentence)
        shown = {v: x for v, x in enumerate(inputs[row, : len(given)].tolist()) if x != given[v]}
        assert len(shown) == round(share * wrong)
        assert shown.items() <= dict(zip(path, said, strict=True)).items()
        n_wrong, n_revealed = n_wrong + wrong, n_revealed + len(shown)
    assert inputs[3].equal(example.inputs[3])  # no path of 3 vertices says 4 words
    assert [x.item() for x in seen["wrong"]] == [n_wrong, 9]
    assert [x.item() for x in seen["revealed"]] == [n_revealed, 9]
    assert n_wrong > 4


@torch.no_grad()
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_glancing_at_a_packed_batch_is_the_same(share: float) -> None:
    model = dag(vertices=3).train().double()
    source = random_batch(5, 2, 4)
    example = model.example(source, source)
    seen = []
    n_words = int((source != PAD).sum())
    for room in (None, model.room(3, n_words + 2, n_words)):
        torch.manual_seed(1)  # of which words are revealed
        with model.transformer.packed(room):
            encoded = model.transformer.encode(source)
            seen.append(model.glance(example, encoded, torch.tensor(share)))
    assert seen[0][0].equal(seen[1][0])
    assert seen[0][1] == seen[1][1]
    assert (seen[0][1]["revealed"][0] > 0) == (share > 0)


def test_without_revealing_training_is_validation() -> None:
    model = dag(start=0.0, end=0.0)
    example = model.example(*training_batch(9, 5))
    validated, _ = model(example, progress_of(model))
    trained, statistics = model.train()(example, progress_of(model))
    assert trained.item() == validated.item()
    assert statistics["revealed"][0] == 0
    weights = [*model.parameters()]
    for ours, theirs in zip(
        *(torch.autograd.grad(loss, weights) for loss in (trained, validated)), strict=True
    ):
        assert ours.equal(theirs)


def test_the_share_falls_from_start_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shares = dag().train(), []

    def glance(example: Example, encoded: object, share: Tensor) -> tuple[Tensor, object]:
        shares.append(share.item())
        return example.inputs, {"wrong": NOTHING}

    monkeypatch.setattr(model, "glance", glance)
    example = model.example(*training_batch(8, 6))
    for epoch, epochs in ((0, 4), (2, 4), (4, 4), (9, math.inf)):
        model(example, progress_of(model, epoch, epochs))
    assert shares == pytest.approx([0.5, 0.3, 0.1, 0.5])


@torch.no_grad()
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_viterbi_finds_the_best_of_all_paths(penalty: float) -> None:
    model = dag(vertices=4)
    source = random_batch(3, 2, 3, 1)
    lengths = set()
    for sentence, (found,) in zip(
        source, model.translate(source, Decoding("viterbi", penalty)), strict=True
    ):
        sentence = sentence[sentence != PAD]
        inputs = inputs_of(model, sentence)
        words, log_probs = naive_pass(model.transformer, sentence.tolist(), inputs)
        _, links = naive_graph(model, sentence)
        scores = {}
        for path in all_paths(len(inputs), 2 * len(sentence) - 1):
            total = links[path[:-1], path[1:]].sum().item() + sum(log_probs[v] for v in path[1:-1])
            scores[tuple(path)] = total / (len(path) - 1) ** penalty
        best = max(scores, key=lambda path: scores[path])
        assert found.tokens == [words[v] for v in best[1:-1]]
        assert found.score == pytest.approx(scores[best], rel=1e-4)
        assert found.length == len(best) - 1
        assert found.log_probability == pytest.approx(found.score * found.length**penalty)
        lengths.add(found.length)
    assert len(lengths) > 1


def test_samples_that_are_hardly_random_take_the_likeliest_links() -> None:
    model, source = dag(), random_batch(9, 3, 6, 1)
    how = Decoding("samples", samples=3, temperature=1e-5)  # ties aside
    found = model.translate(source, how)
    for ours, (greedy,) in zip(found, model.translate(source, Decoding("greedy")), strict=True):
        assert len(ours) == 3
        for one in ours:
            said = one.tokens
            assert [word for word, _ in groupby(said)] == greedy.tokens[: len(said)]
            if len(said) + 1 == greedy.length:  # else it was cut
                assert one.log_probability == pytest.approx(greedy.log_probability, rel=1e-4)


@torch.no_grad()
def test_the_beam_knows_the_likeliest_words_of_each_vertex() -> None:
    model = dag(vertices=2)
    sentence = random_batch(3)[0]
    graph = graph_of(model, sentence[None], n_words=3, everywhere=False)
    hidden = hidden_states(
        model.transformer, sentence[None], torch.tensor([inputs_of(model, sentence)])
    )
    logits = model.transformer.logits(hidden)[0]
    logits[:, :7] = -math.inf  # symbols
    expected = logits.log_softmax(1).topk(3)
    assert graph.words[0, 1:-1].equal(expected.indices[1:-1])
    torch.testing.assert_close(graph.log_probs[0, 1:-1], expected.values[1:-1])
    assert graph_of(model, sentence[None], n_words=99, everywhere=False).words.shape[2] == 30 - 7


@torch.no_grad()
@pytest.mark.parametrize("method", ["lookahead", "greedy"])
def test_step_by_step_equals_a_plain_loop(method: DAGMethod) -> None:
    model = dag()
    source = random_batch(9, 3, 13, 6, 1)
    n_repeats = 0
    for sentence, (found,) in zip(source, model.translate(source, Decoding(method)), strict=True):
        sentence = sentence[sentence != PAD]
        inputs = inputs_of(model, sentence)
        words, log_probs = naive_pass(model.transformer, sentence.tolist(), inputs)
        _, links = naive_graph(model, sentence)
        vertex, last, total, said = 0, len(inputs) - 1, 0.0, []
        log_probs[last] = 0.0  # EOS
        while vertex != last:
            weight = float(method == "lookahead")
            after = {j: links[vertex, j].item() + weight * log_probs[j]
                     for j in range(vertex + 1, last + 1)}  # fmt: skip
            following = max(after, key=lambda j: after[j])
            total += links[vertex, following].item() + log_probs[following]
            vertex = following
            said += [words[vertex]] if vertex != last else []
        assert found.tokens == [word for word, _ in groupby(said)]
        assert found.log_probability == pytest.approx(total, rel=1e-4)
        assert found.score == pytest.approx(total / (len(said) + 1), rel=1e-4)
        assert found.length == len(said) + 1
        n_repeats += len(said) - len(found.tokens)
    assert n_repeats > 0


def test_no_path_has_a_higher_probability_than_that_of_viterbi() -> None:
    model, source = dag(), random_batch(9, 3, 13, 6)

    def totals(method: DAGMethod) -> list[float]:
        found = model.translate(source, Decoding(method, 0.0))
        return [h[0].log_probability for h in found]

    best, text, ahead, greedy = map(totals, METHODS)
    assert all(a >= max(b, c) - 1e-4 for a, b, c in zip(best, ahead, greedy, strict=True))
    assert best != pytest.approx(ahead)
    assert all(a >= b - 1e-4 for a, b in zip(text, best, strict=True))  # the sum of many paths
    assert text != pytest.approx(best)


@pytest.mark.parametrize("method", METHODS)
def test_padding_and_batch_mates_change_no_translation(method: DAGMethod) -> None:
    model, source = dag().double(), random_batch(9, 3, 13, 6, 1)

    def found(batch: Tensor) -> list[Hypothesis]:
        return [found[0] for found in model.translate(batch, Decoding(method))]

    for row, together in zip(source, found(source), strict=True):
        (alone,) = found(row[row != PAD][None])
        assert (alone.tokens, alone.length) == (together.tokens, together.length)
        assert alone.score == pytest.approx(together.score, rel=1e-5)


def test_the_first_and_the_last_vertex_say_no_words() -> None:
    model = dag(vertices=2)
    for n_words in (1, 2):
        graph = graph_of(model, random_batch(3, 1), n_words=n_words, everywhere=True)
        assert graph.last.tolist() == [[5], [1]]
        for n in range(n_words):
            there = [[False, *[True] * 4, False], [False] * 6]
            assert (graph.words[:, :, n] > 0).tolist() == there
    for method in METHODS:
        (found,) = model.translate(random_batch(1), Decoding(method))
        assert (found[0].tokens, found[0].length) == ([], 1)
        assert found[0].score == pytest.approx(0.0, abs=1e-6)


def test_targets_that_do_not_fit_are_counted_and_warned_of() -> None:
    model = dag(vertices=2)
    source, target = random_batch(2, 2), torch.tensor([[7, 8, PAD], [7, 8, 9]])  # with BOS and EOS
    _, statistics = model(model.example(source, target), progress_of(model))
    assert [number.item() for number in statistics["impossible"]] == [1, 2]
    loss, _ = model(model.example(source[1:], target[1:]), progress_of(model))
    assert loss.item() == 0
    assert "raise dag.vertices" in model.advice({"impossible": 0.03}, from_scratch=True)
    assert not model.advice({"impossible": 0.01}, from_scratch=True)


@pytest.mark.parametrize("system", ["transformer", "ctc", "cmlm"])
def test_starts_from_another_system_but_for_positions_and_links(system: str) -> None:
    model, other = dag(), micro(system)
    before, theirs = {n: w.clone() for n, w in model.state_dict().items()}, other.state_dict()
    take_over(model, other)
    for name, weight in model.state_dict().items():
        new = name.startswith("links.") or name == "transformer.target_positions.weight"
        assert weight.equal((before if new else theirs)[name]), name


def test_advice_on_objectives_that_need_a_start() -> None:
    model = dag(objective="ngrams")
    assert "dag.objective ngrams is for fine-tuning" in model.advice({}, from_scratch=True)
    assert not model.advice({}, from_scratch=False)
    assert not dag().advice({}, from_scratch=True)


def test_starts_from_another_graph_as_it_is() -> None:
    model, other = dag(), dag()
    assert same(model.weights_from(other), other.state_dict())


@pytest.mark.parametrize(
    ("decoding", "text"),
    [
        (Decoding(), "joint Viterbi"),
        (Decoding(length_penalty=0.8), "joint Viterbi, length penalty 0.8"),
        (Decoding("lookahead", 0.8), "lookahead, repeats removed"),
        (Decoding("greedy"), "greedy, repeats removed"),
        (Decoding("beam"), "beam 20 over all paths"),
        (Decoding("samples", samples=8), "consensus of 8 samples, temperature 0.7"),
        (Decoding("beam", 1.0, 9, 3), "beam 9 over all paths of 3 words a vertex"),
        (Decoding("beam", 0.8), "beam 20 over all paths, length penalty 0.8"),
    ],
)
def test_decoding_as_text(decoding: Decoding, text: str) -> None:
    assert str(decoding) == text


def test_learns_to_reverse() -> None:
    model = learn("dag", steps=300)
    assert exact_matches(model, Decoding()) > 0.95
    # A digit twice in a row is one that step by step is removed.
    assert exact_matches(model, Decoding("lookahead")) > 0.6
    check_fine_tuning(model, Decoding())
