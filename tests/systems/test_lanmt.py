"""LaNMT: the bound by plain loops, free bits, refinement step by step, and that it learns."""

import math
from itertools import groupby

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from oaxe.model.latent import Gaussian
from oaxe.search.hypothesis import forbidden
from oaxe.systems.lanmt import MOST_DIFFERENCE, Decoding, Model
from oaxe.text.symbols import EOS, MASK, PAD
from tests.models import micro, random_batch
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch


def lanmt(**options: float) -> Model:
    """In evaluation mode, without dropout."""
    model = micro("lanmt", options=options, dropout=0.0)
    assert isinstance(model, Model)
    return model


def normal(hidden: Tensor, layer: torch.nn.Module) -> Normal:
    mean, log_scale = layer.get_submodule("output")(hidden).chunk(2, -1)
    return Normal(mean, log_scale.exp())


def naive_posterior(model: Model, source: Tensor, words: list[int]) -> Normal:
    """``(source_len, latent)`` for one sentence without padding."""
    encoded = model.posterior.encode(torch.tensor([[*words, EOS]]))
    hidden = model.posterior.decode(source[None], source[None] != PAD, encoded)
    return normal(hidden[0], model.of_posterior)


def naive_logits(model: Model, source: Tensor, z: Tensor, n: int) -> Tensor:
    """``(n, vocab)`` for one sentence without padding."""
    width = model.spread.log_width.exp()
    spread = []
    for i in range(n):
        weights = [-((j - i * len(source) / n) ** 2) / (2 * width**2) for j in range(len(source))]
        spread.append(torch.cat(weights).softmax(0) @ z)
    more = model.latent(torch.stack(spread)) + model.lengths.weight[n]
    inputs = torch.full((1, n), MASK)
    encoded = model.transformer.encode(source[None])
    hidden = model.transformer.decode(inputs, inputs != PAD, encoded, more[None])
    return model.transformer.logits(hidden[0])


def naive_length(model: Model, source: Tensor, z: Tensor) -> Tensor:
    """Logits of the difference in length."""
    states = model.transformer.encode(source[None]).hidden[0]
    found: Tensor = model.difference((states + model.latent(z)).mean(0))
    return found


@pytest.mark.parametrize("free", [0.0, 3.0])
@pytest.mark.parametrize("training", [True, False])
def test_loss_is_the_bound(training: bool, free: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaussian, "sample", lambda self: self.mean + 0.5 * self.log_scale.exp())
    model = lanmt(free_nats=free, label_smoothing=0.2, length_weight=0.5).train(training)
    source, target = training_batch(9, 5, 12)
    loss, statistics = model(model.example(source, target), progress_of(model))
    total, all_nats = torch.zeros(()), []
    for row, words in zip(source, target, strict=True):
        sentence, wanted = row[row != PAD], words[words != PAD]
        encoded = model.transformer.encode(sentence[None])
        prior = normal(encoded.hidden[0], model.of_prior)
        posterior = naive_posterior(model, sentence, wanted.tolist())
        z = posterior.mean + 0.5 * posterior.stddev if training else prior.mean
        logits = naive_logits(model, sentence, z, len(wanted))
        total = total + F.cross_entropy(logits, wanted, label_smoothing=0.2, reduction="sum")
        difference = torch.tensor(len(wanted) - len(sentence) + MOST_DIFFERENCE)
        total = total + 0.5 * F.cross_entropy(naive_length(model, sentence, z), difference)
        nats = kl_divergence(posterior, prior).sum(1)
        all_nats += nats.tolist()
        total = total + sum(x if x > free else torch.tensor(free) for x in nats)
    torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-4)
    assert [x > free for x in all_nats].count(True) > 2
    assert statistics["divergence"][0].item() == pytest.approx(sum(all_nats), rel=1e-4)
    assert statistics["divergence"][1] == len(all_nats)
    weights = [*model.parameters()]
    pairs = (torch.autograd.grad(x, weights, materialize_grads=True) for x in (loss, total))
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_free_bits_fall_in_the_second_half() -> None:
    model = lanmt(free_nats=1e4)
    example = model.example(*training_batch(8, 6))
    n = 14
    losses = [
        model(example, progress_of(model, epoch, epochs))[0].item()
        for epoch, epochs in ((0, 4), (2, 4), (3, 4), (4, 4), (9, math.inf))
    ]
    rest = losses[3]
    assert losses[0] == losses[1] == losses[4]
    assert losses[1] - losses[2] == pytest.approx(0.5e4 * n, rel=1e-3)
    assert rest < 1e4


@torch.no_grad()
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_refinement_equals_a_plain_loop(steps: int) -> None:
    model = lanmt()
    source = random_batch(9, 3, 6)
    found = model.translate(source, Decoding(refine_steps=steps))
    for row, (ours,) in zip(source, found, strict=True):
        sentence = row[row != PAD]
        z = normal(model.transformer.encode(sentence[None]).hidden[0], model.of_prior).mean
        for step in range(1, steps + 1):
            difference = int(naive_length(model, sentence, z).argmax()) - MOST_DIFFERENCE
            n = min(max(len(sentence) + difference, 1), model.max_length)
            logits = naive_logits(model, sentence, z, n)
            logits[:, forbidden(logits.device)] = -math.inf
            log_probs, words = logits.log_softmax(1).max(1)
            if step < steps:
                z = naive_posterior(model, sentence, words.tolist()).mean
        assert ours.tokens == [w for w, _ in groupby(words.tolist())]
        assert ours.length == n
        assert ours.log_probability == pytest.approx(log_probs.sum().item(), rel=1e-4)
        assert ours.score == pytest.approx(log_probs.mean().item(), rel=1e-4)
    kept = model.translate(source, Decoding(steps, repeats="keep"))
    assert [len(h[0].tokens) for h in kept] == [h[0].length for h in found]


def test_only_free_bits_need_an_end() -> None:
    assert lanmt().options.needs_end
    assert not lanmt(free_nats=0.0).options.needs_end


@pytest.mark.parametrize(
    ("decoding", "text"),
    [(Decoding(), "repeats removed"), (Decoding(2, repeats="keep"), "repeats kept, 2 passes")],
)
def test_decoding_as_text(decoding: Decoding, text: str) -> None:
    assert str(decoding) == text


def test_learns() -> None:
    model = learn("lanmt", steps=200, label_smoothing=0.0)
    for passes in (1, 2):
        assert exact_matches(model, Decoding(passes, repeats="keep")) > 0.9
