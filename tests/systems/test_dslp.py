"""DSLP: layers by plain loops, the labels of mixed training by enumeration, and that it learns."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.search.hypothesis import forbidden
from oaxe.systems import System
from oaxe.systems.dslp import Decoding, Model
from oaxe.text.symbols import BLANK, EOS, MASK, PAD
from oaxe.training.start import take_over
from tests.models import emphasise, micro, random_batch
from tests.runs import same
from tests.systems.digits import copies, exact_matches, learn
from tests.systems.test_ctc_glat import best_alignment
from tests.systems.test_systems import progress_of, training_batch


def dslp(norm: str = "post", layers: int = 3, **options: float) -> Model:
    """In evaluation mode, without dropout."""
    model = micro("dslp", norm, options=options, dropout=0.0, decoder_layers=layers)
    assert isinstance(model, Model)
    return emphasise(model, BLANK)


def naive_states(model: Model, source: Tensor) -> list[Tensor]:
    """``(positions, dim)`` of each layer, for one sentence without padding."""
    transformer = model.transformer
    inputs = source.repeat_interleave(model.options.upsample)
    encoded = transformer.encode(source[None])
    x = transformer.tokens(inputs) + transformer.target_positions.weight[: len(inputs)]
    x = transformer.target_norm(x)[None]
    states = []
    for number, layer in enumerate(transformer.decoder):
        hidden = transformer.decoder_norm(layer(x, torch.ones(1, len(inputs)) > 0, encoded, False))
        states.append(hidden[0])
        if number < len(transformer.decoder) - 1:
            logits = transformer.logits(hidden).detach()
            logits[:, :, forbidden(logits.device, BLANK)] = -torch.inf
            embedded = transformer.tokens(logits.argmax(2))
            linear = dict(transformer.between[number].named_parameters())
            both = torch.cat([hidden, embedded], 2)
            x = hidden + both @ linear["weight"].T + linear["bias"]
    return states


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_loss_is_the_mean_of_the_layers(norm: str) -> None:
    model = dslp(norm)
    source, target = training_batch(9, 5, 12)
    loss, statistics = model(model.example(source, target), progress_of(model))
    total, last = torch.zeros(()), torch.zeros(())
    for row, words in zip(source, target, strict=True):
        sentence, wanted = row[row != PAD], words[words != PAD]
        of_layers = []
        for hidden in naive_states(model, sentence):
            log_probs = model.transformer.logits(hidden).log_softmax(1)
            sizes = torch.tensor(len(log_probs)), torch.tensor(len(wanted))
            of_layers.append(F.ctc_loss(log_probs, wanted, *sizes, blank=BLANK, reduction="sum"))
        assert len(of_layers) == 3
        total, last = total + sum(of_layers) / 3, last + of_layers[-1]
    torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(statistics["last_layer"][0], last, rtol=1e-5, atol=1e-5)
    weights = [*model.parameters()]
    ours, theirs = (torch.autograd.grad(x, weights, materialize_grads=True) for x in (loss, total))
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_decodes_with_the_last_layer() -> None:
    model = dslp()
    source = random_batch(9, 3, 6)
    for row, (found,) in zip(source, model.translate(source, Decoding()), strict=True):
        logits = model.transformer.logits(naive_states(model, row[row != PAD])[-1])
        logits[:, forbidden(logits.device, BLANK)] = -torch.inf
        expected = logits.log_softmax(1).max(1).values.sum().item()
        assert found.log_probability == pytest.approx(expected, rel=1e-4)


def test_one_layer_is_ctc() -> None:
    model, plain = dslp(layers=1), micro("ctc", decoder_layers=1)
    plain.load_state_dict(model.state_dict())
    source, target = training_batch(12, 5, 9)
    losses = [one(one.example(source, target), progress_of(one))[0] for one in (model, plain)]
    assert losses[0].item() == losses[1].item()
    assert model.translate(source, Decoding()) == plain.translate(source, Decoding())


def test_without_mixing_training_is_validation() -> None:
    model = dslp(mixed=0.0)
    example = model.example(*training_batch(12, 5, 9))
    validated, trained = (
        model(example, progress_of(model)),
        model.train()(example, progress_of(model)),
    )
    assert trained[0].item() == validated[0].item()


@torch.no_grad()
def test_mixes_in_labels_of_the_best_alignment() -> None:
    model = dslp(mixed=1.0)
    source = random_batch(4, 3, 2)
    target = torch.tensor([[8, 9, 10], [11, 11, PAD], [7, 7, 7]])  # 5 of 4 positions
    example = model.example(source, target)
    hidden = model.transformer.decode_by_layer(
        example.inputs,
        example.mask,
        model.transformer.encode(source),
        model.transformer.reader(example.mask),
    )[0]
    labels = torch.full_like(example.inputs, 28)
    mixed = model.mix(example, labels, hidden)
    n_masks = 0
    for row in range(2):
        n = int(example.mask[row].sum())
        logits = model.transformer.logits(hidden[row, :n])
        expected = best_alignment(logits, target[row][target[row] != PAD].tolist())
        assert mixed[row, :n].tolist() == [MASK if x == BLANK else x for x in expected]
        n_masks += expected.count(BLANK)
    assert n_masks > 0
    assert (mixed[2] == 28).all()  # it has no alignment


def test_replaces_the_share_of_labels_that_it_should() -> None:
    model = dslp(mixed=0.3)
    source, target = random_batch(*[13] * 200), torch.full((200, 1), 8)
    example = model.example(source, target)
    hidden = torch.randn(*example.inputs.shape, 32)
    labels = torch.full_like(example.inputs, 28)
    replaced = (model.mix(example, labels, hidden) != 28).float().mean().item()
    assert replaced == pytest.approx(0.3, abs=0.03)


def test_labels_pass_no_gradient_but_their_embeddings_do() -> None:
    model = dslp(layers=2)
    source = random_batch(5)
    inputs = torch.full((1, 4), EOS)
    mask, transformer = inputs != PAD, model.transformer
    weight = transformer.tokens.weight
    states = transformer.decode_by_layer(
        inputs, mask, transformer.encode(source), transformer.reader(mask)
    )
    words = transformer.predicted(states[0], mask)
    (gradient,) = torch.autograd.grad(states[1].sum(), weight, retain_graph=True)
    known = {*source.flatten().tolist(), EOS, *words.flatten().tolist()}
    assert {i for i, row in enumerate(gradient) if row.any()} == known
    assert not set(words.flatten().tolist()) <= {*source.flatten().tolist(), EOS}


@pytest.mark.parametrize("system", ["ctc", "transformer"])
def test_starts_from_another_system(system: str) -> None:
    model, other = dslp(layers=2), micro(system)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    take_over(model, other)
    theirs = other.state_dict()
    positions = "transformer.target_positions.weight"
    for name, weight in model.state_dict().items():
        new = ".between." in name or (name == positions and system == "transformer")
        assert weight.equal((before if new else theirs)[name]), name


def test_starts_from_another_one_as_it_is() -> None:
    model: System = dslp()
    other = dslp()
    assert same(model.weights_from(other), other.state_dict())


def test_learns() -> None:
    model = learn("dslp", steps=100, layers=2, strings=copies)
    assert exact_matches(model, Decoding(), copied=True) > 0.9
