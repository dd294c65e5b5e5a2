"""FlowSeq: the bound and the prior's density by hand, decoding by a plain loop, and it learns."""

import math
from itertools import groupby, pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal
from torch.nn.attention import SDPBackend, sdpa_kernel

from oaxe.model.latent import Gaussian
from oaxe.model.transformer import Encoded
from oaxe.search.hypothesis import forbidden
from oaxe.support.config import build
from oaxe.support.errors import UserError
from oaxe.systems import System
from oaxe.systems.flowseq import LEAST_WEIGHT, Decoding, Model, Options
from oaxe.systems.lanmt import Repeats
from oaxe.text.symbols import MASK, PAD
from tests.models import micro, random_batch
from tests.runs import same
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch


def flowseq(**options: float) -> Model:
    """In evaluation mode, without dropout."""
    model = micro("flowseq", options={"latent": 4, "flow_steps": 2, **options}, dropout=0.0)
    assert isinstance(model, Model)
    return model


def naive_logits(model: Model, encoded: Encoded, z: Tensor) -> Tensor:
    """``(length, vocab)`` for ``z (1, length, latent)``."""
    inputs = torch.full(z.shape[:2], MASK)
    hidden = model.transformer.decode(inputs, inputs != PAD, encoded, model.latent(z))
    return model.transformer.logits(hidden[0])


def log_prior(model: Model, encoded: Encoded, z: Tensor) -> Tensor:
    """By the Jacobian; differentiable."""
    mask = torch.ones(z.shape[:2], dtype=torch.bool)
    with sdpa_kernel(SDPBackend.MATH):  # others have no second derivative
        noise = model.flow(z, mask, encoded)[0].flatten()
    rows = [torch.autograd.grad(x, z, create_graph=True)[0].flatten() for x in noise]
    density: Tensor = Normal(0.0, 1.0).log_prob(noise)  # type: ignore[no-untyped-call]
    return density.sum() + torch.stack(rows).slogdet().logabsdet


def test_loss_is_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaussian, "sample", lambda self: self.mean + 0.5 * self.log_scale.exp())
    options = {"word_dropout": 0.0, "label_smoothing": 0.2, "length_weight": 0.5, "warmup": 0.5}
    model = flowseq(**options).train()
    source, target = training_batch(9, 5)
    loss, statistics = model(model.example(source, target), progress_of(model, 1, 4))
    words = nats = lengths = torch.zeros(())
    for row, target_row in zip(source, target, strict=True):
        sentence, wanted = row[row != PAD], target_row[target_row != PAD]
        encoded, logits = model.length.encode(model.transformer, sentence[None])
        lengths = lengths + F.cross_entropy(logits[0], torch.tensor(len(wanted)))
        embedded = model.transformer.tokens(wanted)[None]
        seen = wanted[None] != PAD
        mean, log_scale = model.posterior(embedded, seen, encoded).chunk(2, 2)
        posterior = Normal(mean, log_scale.exp())
        z = mean + 0.5 * posterior.stddev
        density: Tensor = posterior.log_prob(z)  # type: ignore[no-untyped-call]
        nats = nats + density.sum() - log_prior(model, encoded, z)
        logits = naive_logits(model, encoded, z)
        words = words + F.cross_entropy(logits, wanted, label_smoothing=0.2, reduction="sum")
    expected = words + 0.5 * lengths + 0.5 * nats  # half of the warm-up is over
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(statistics["divergence"][0], nats, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(statistics["loss"][0], words, rtol=1e-4, atol=1e-3)
    weights = [*model.parameters()]
    pairs = (torch.autograd.grad(x, weights, materialize_grads=True) for x in (loss, expected))
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_validation_has_the_latent_vectors_of_decoding() -> None:
    model = flowseq(label_smoothing=0.0, length_weight=0.0)
    source, target = training_batch(9, 5)
    loss, statistics = model(model.example(source, target), progress_of(model))
    total = torch.zeros(())
    for row, words in zip(source, target, strict=True):
        sentence, wanted = row[row != PAD], words[words != PAD]
        encoded, _ = model.length.encode(model.transformer, sentence[None])
        z = model.flow.inverse(torch.zeros(1, len(wanted), 4), wanted[None] != PAD, encoded)
        total = total + F.cross_entropy(naive_logits(model, encoded, z), wanted, reduction="sum")
    torch.testing.assert_close(loss, total, rtol=1e-4, atol=1e-3)
    assert "divergence" not in statistics


def test_the_weight_of_the_divergence_rises() -> None:
    model = flowseq(warmup=0.5)
    weights = [
        model.weight(progress_of(model, epoch, epochs)).item()
        for epoch, epochs in ((0, 4), (1, 4), (2, 4), (4, 4), (9, math.inf))
    ]
    assert weights == pytest.approx([LEAST_WEIGHT, 0.5, 1, 1, LEAST_WEIGHT])
    assert flowseq(warmup=0.0).weight(progress_of(model)).item() == 1
    assert model.options.needs_end
    assert not flowseq(warmup=0.0).options.needs_end


def test_words_are_hidden_from_the_posterior() -> None:
    model = flowseq(word_dropout=0.5)
    example = model.example(random_batch(*[9] * 100), random_batch(*[9] * 100))
    encoded, _ = model.length.encode(model.transformer, example.source)
    seen: list[Tensor] = []
    model.transformer.tokens.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model.guess(example, encoded)
    assert (seen[0] == MASK).float().mean().item() == pytest.approx(0.5, abs=0.05)


@torch.no_grad()
@pytest.mark.parametrize("repeats", ["merge", "keep"])
def test_decoding_equals_a_plain_loop(repeats: Repeats) -> None:
    model, source = flowseq(), random_batch(9, 3, 6)
    decoding = Decoding(2, repeats, 0.5)
    for row, found in zip(source, model.translate(source, decoding), strict=True):
        sentence = row[row != PAD]
        encoded, logits = model.length.encode(model.transformer, sentence[None])
        logits[0, 0] = logits[0, 2 * (len(sentence) - 1) + 11 :] = -math.inf
        expected = {}
        for n in logits[0].topk(2).indices.tolist():
            mask = torch.ones(1, n, dtype=torch.bool)
            z = model.flow.inverse(torch.zeros(1, n, 4), mask, encoded)
            scores = naive_logits(model, encoded, z)
            scores[:, forbidden(scores.device)] = -math.inf
            log_probs, words = scores.log_softmax(1).max(1)
            said = words.tolist()
            said = [w for w, _ in groupby(said)] if repeats == "merge" else said
            expected[n] = (said, log_probs.sum().item() / n**0.5)
        assert found[0].score >= found[1].score
        for one in found:
            assert one.tokens == expected[one.length][0]
            assert one.score == pytest.approx(expected[one.length][1], rel=1e-3)


def test_forbids_repeats() -> None:
    """Of the same lengths; where the likeliest words have no repeats, these are the same."""
    model, source, same_words = flowseq(), random_batch(*[4] * 30), 0
    apart, kept = (model.translate(source, Decoding(2, repeats)) for repeats in ("forbid", "keep"))
    for ours, plain in zip(apart, kept, strict=True):
        by_length = {one.length: one for one in plain}
        for one in ours:
            likeliest = by_length[one.length]
            assert len(one.tokens) == one.length
            assert all(a != b for a, b in pairwise(one.tokens))
            assert one.score <= likeliest.score + 1e-6
            if all(a != b for a, b in pairwise(likeliest.tokens)):
                assert one.tokens == likeliest.tokens
                same_words += 1
    assert 0 < same_words < 60


def test_starts_as_a_cmlm_does() -> None:
    model: System = flowseq()
    other = micro("cmlm")
    assert same(model.weights_from(other), other.state_dict())


@pytest.mark.parametrize(
    ("decoding", "text"),
    [
        (Decoding(), "5 lengths, repeats removed"),
        (Decoding(1, "keep", 0.5), "1 length, repeats kept, length penalty 0.5"),
    ],
)
def test_decoding_as_text(decoding: Decoding, text: str) -> None:
    assert str(decoding) == text


def test_rejects_an_odd_number() -> None:
    with pytest.raises(UserError, match="latent must be even, as couplings halve it; got 7"):
        build(Options, {"latent": 7})


def test_learns() -> None:
    """With as many latent numbers as it has by default: their noise must not hide the positions."""
    model = learn("flowseq", steps=120, label_smoothing=0.0, flow_steps=2)
    assert exact_matches(model, Decoding(length_candidates=1, repeats="keep")) > 0.9
