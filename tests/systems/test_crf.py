"""The bigram CRF against the enumeration of all sentences, and that it learns."""

from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.search.hypothesis import forbidden
from oaxe.search.one_pass import translate_lengths
from oaxe.search.options import Repeats
from oaxe.systems.crf import Decoding, Model, log_normaliser, path_score
from oaxe.text.symbols import PAD, SYMBOLS
from tests.models import micro, random_batch
from tests.runs import same
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of

WORDS = range(len(SYMBOLS), len(SYMBOLS) + 4)


def small(**options: Any) -> Model:
    """Of four words, all of which are in the beam unless the options say otherwise."""
    model = micro("crf", options={"length_weight": 0.0, **options}, vocab_size=WORDS.stop)
    assert isinstance(model, Model)
    with torch.no_grad():
        for table in (model.before, model.after):
            table.weight.normal_(std=0.5)
    return model


def batch() -> tuple[Tensor, Tensor]:
    source = torch.tensor([[7, 8, 9, 2], [10, 2, PAD, PAD], [8, 8, 2, PAD]])
    return source, torch.tensor([[9, 9, 7, 10], [8, PAD, PAD, PAD], [7, 10, 8, PAD]])


def log_probabilities(model: Model, source: Tensor, n: int) -> dict[tuple[int, ...], Tensor]:
    """Of every sentence of n words, for a source without padding; differentiable."""
    encoded, _ = model.length.encode(model.transformer, source.unsqueeze(0))
    inputs = torch.full((1, n), 4)
    logits = model.transformer.logits(model.transformer.decode(inputs, inputs > 0, encoded))[0]
    scores = {}
    for words in product(WORDS, repeat=n):
        of_words = torch.stack([logits[t, w] for t, w in enumerate(words)]).sum()
        pairs = [model.before.weight[a] @ model.after.weight[b] for a, b in pairwise(words)]
        scores[words] = of_words + sum(pairs)
    normaliser = torch.stack(list(scores.values())).logsumexp(0)
    return {words: score - normaliser for words, score in scores.items()}


def test_loss_equals_enumeration() -> None:
    model = small(xe=0.0).double()
    source, target = batch()
    loss, statistics = model(model.example(source, target), progress_of(model))
    expected = loss.new_zeros(())
    for s, t in zip(source, target, strict=True):
        words = tuple(t[t != PAD].tolist())
        expected = expected - log_probabilities(model, s[s != PAD], len(words))[words]
    torch.testing.assert_close(loss, expected)
    assert [n.item() for n in statistics["outside"]] == [0, 8]
    parameters = list(model.parameters())
    ours, theirs = (
        torch.autograd.grad(x, parameters, materialize_grads=True) for x in (loss, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("repeats", ["keep", "merge", "forbid"])
def test_translation_equals_enumeration(repeats: Repeats) -> None:
    model, n_equal = small(), 0
    source, _ = batch()
    found = model.translate(source, Decoding(length_candidates=4, repeats=repeats))
    for s, hypotheses in zip(source, found, strict=True):
        for hypothesis in (h for h in hypotheses if h.length <= 5):
            probability = log_probabilities(model, s[s != PAD], hypothesis.length)
            assert sum(p.exp().item() for p in probability.values()) == pytest.approx(1, abs=1e-4)
            apart = [w for w in probability if all(a != b for a, b in pairwise(w))]
            best = max(
                apart if repeats == "forbid" else probability, key=lambda w: probability[w].item()
            )
            n_equal += len(best) - len(without_repeats(best))
            expected = best if repeats == "keep" else without_repeats(best)
            assert hypothesis.tokens == list(expected)
            assert hypothesis.log_probability == pytest.approx(probability[best].item(), abs=1e-4)
            mean = hypothesis.log_probability / hypothesis.length
            assert hypothesis.score == pytest.approx(mean)
    assert bool(n_equal) == (repeats != "forbid")


def without_repeats(words: tuple[int, ...]) -> tuple[int, ...]:
    return words[:1] + tuple(b for a, b in pairwise(words) if a != b)


@pytest.mark.parametrize("repeats", ["keep", "forbid"])
def test_without_transitions_it_is_a_cmlm(repeats: Repeats) -> None:
    """Argmax, or the best words that differ from their neighbours; XE over words alone."""
    model = micro("crf", options={"xe": 0.0, "length_weight": 0.0})
    assert isinstance(model, Model)
    with torch.no_grad():
        model.before.weight.zero_()
    source = random_batch(9, 3, 12)
    ours = model.translate(source, Decoding(repeats=repeats))
    theirs = translate_lengths(model, source, repeats=repeats)
    # Of fewer words than there are, so that the probability is a little higher.
    assert [[h.tokens for h in hs] for hs in ours] == [[h.tokens for h in hs] for hs in theirs]
    source, target = batch()
    example = model.example(source, target)
    encoded, _ = model.length.encode(model.transformer, source)
    logits = model.transformer.logits(
        model.transformer.decode(example.inputs, example.mask, encoded)
    ).index_fill(2, forbidden(source.device), -torch.inf)
    expected = F.cross_entropy(logits.flatten(0, 1), example.target.flatten(), reduction="sum")
    torch.testing.assert_close(model(example, progress_of(model))[0], expected)


def test_the_target_is_always_among_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the place of the least likely one, where it is not there already."""
    model, seen = small(beam=2), list[tuple[Tensor, Tensor]]()

    def scores(hidden: Tensor, words: Tensor) -> Tensor:
        seen.append((words, Model.scores(model, hidden, words)))
        return seen[-1][1]

    monkeypatch.setattr(model, "scores", scores)
    source, target = batch()
    example = model.example(source, target)
    _, statistics = model(example, progress_of(model))
    ((words, of_words),) = seen
    encoded, _ = model.length.encode(model.transformer, source)
    hidden = model.transformer.decode(example.inputs, example.mask, encoded)
    logits = model.transformer.logits(hidden)
    n_outside = 0
    for row, t in (~(target == PAD)).nonzero().tolist():
        first, second = logits[row, t, list(WORDS)].topk(2).indices.add(WORDS.start).tolist()
        own = int(target[row, t])
        expected = [first, second if own in (first, second) else own]
        assert words[row, t].tolist() == expected
        torch.testing.assert_close(of_words[row, t], logits[row, t, expected])
        n_outside += own not in (first, second)
    assert [n.item() for n in statistics["outside"]] == [n_outside, 8]
    assert 0 < n_outside < 8


def test_the_best_path_has_the_best_score_and_shares_add_up() -> None:
    scores, between = torch.randn(3, 4, 3).double(), torch.randn(3, 3, 3, 3).double()
    mask = torch.arange(4) < torch.tensor([[4], [2], [1]])
    everything = log_normaliser(scores, between, mask)
    for row, n in enumerate((4, 2, 1)):
        paths = [torch.tensor([[*p, *[0] * (4 - n)]]) for p in product(range(3), repeat=n)]
        one = slice(row, row + 1)
        found = [path_score(scores[one], between[one], path, mask[one]) for path in paths]
        torch.testing.assert_close(torch.cat(found).logsumexp(0), everything[row])


def test_logits_in_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    example = model.example(*batch())
    whole, _ = model(example, progress_of(model))
    monkeypatch.setattr("oaxe.search.words.LOGITS_AT_ONCE", {"cpu": 30})
    torch.testing.assert_close(model(example, progress_of(model))[0], whole)


def test_rows_without_a_sentence_have_no_loss() -> None:
    model = small()
    source, target = (F.pad(x, (0, 0, 0, 2), value=PAD) for x in batch())
    whole, _ = model(model.example(source, target), progress_of(model))
    torch.testing.assert_close(whole, model(model.example(*batch()), progress_of(model))[0])


def test_starts_from_an_autoregressive_model_as_a_cmlm_does() -> None:
    teacher = micro("transformer")
    assert same(micro("crf").weights_from(teacher), micro("cmlm").weights_from(teacher))


def test_decoding_as_text() -> None:
    assert str(Decoding(repeats="forbid")) == "best path, 5 lengths, repeats forbidden"


def test_learns_to_reverse() -> None:
    model = learn("crf", steps=200, beam=6, label_smoothing=0.0)
    assert exact_matches(model, Decoding(length_candidates=1, repeats="keep")) > 0.9
