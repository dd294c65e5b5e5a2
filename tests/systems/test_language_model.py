"""The language model: likelihoods by the chain rule, and that the source is not read."""

import pytest
import torch

from oaxe.systems import language_model
from oaxe.systems.language_model import Decoding
from oaxe.text.symbols import BOS, EOS, PAD
from tests.models import hidden_states, micro, random_batch
from tests.systems.test_systems import progress_of, training_batch


@torch.no_grad()
def test_log_likelihood_by_the_chain_rule() -> None:
    model = micro("language_model", "pre")
    assert isinstance(model, language_model.Model)
    target = torch.tensor([[9, 8, 20, 7], [11, 12, PAD, PAD], [PAD, PAD, PAD, PAD]])
    expected = []
    for row in target:
        words, total = row[row != PAD].tolist(), 0.0
        for i, word in enumerate([*words, EOS]):
            inputs = torch.tensor([[BOS, *words[:i]]])
            hidden = hidden_states(model.transformer, torch.tensor([[EOS]]), inputs)
            logits = model.transformer.logits(hidden)[0, -1].double()
            total += float(logits.log_softmax(0)[word])
        expected.append(total)
    found = model.log_likelihood(target)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    assert len(set(expected)) == 3


def test_the_source_is_not_read() -> None:
    model = micro("language_model")
    source, target = training_batch(9, 5, 12)
    losses = [
        model(model.example(s, target), progress_of(model))[0].item()
        for s in (source, random_batch(4, 4, 4))
    ]
    assert losses[0] == losses[1]
    assert not model.transformer.encoder
    assert isinstance(model, language_model.Model)
    plain = micro("language_model", options={"label_smoothing": 0.0})
    plain.load_state_dict(model.state_dict())
    loss, _ = plain(plain.example(source, target), progress_of(plain))
    assert loss.item() == pytest.approx(-model.log_likelihood(target).sum().item(), rel=1e-5)


def test_does_not_translate() -> None:
    model = micro("language_model")
    assert not model.translates
    assert str(Decoding()) == "does not translate"
    with pytest.raises(NotImplementedError):
        model.translate(random_batch(3), Decoding())
