"""The autoregressive system: its loss by hand, its decoding, and that it learns."""

import pytest
import torch
import torch.nn.functional as F

from oaxe.search.beam import beam_search
from oaxe.systems import System
from oaxe.systems.transformer import Decoding
from oaxe.text.symbols import BOS, EOS, PAD
from tests.models import eager_to_end, hidden_states, micro, random_batch
from tests.systems.digits import exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch


def test_loss_is_cross_entropy_of_the_next_word() -> None:
    model = micro("transformer", options={"label_smoothing": 0.2})
    source, target = training_batch(9, 5, 12)
    loss, statistics = model(model.example(source, target), progress_of(model))
    total, n_words = 0.0, 0
    for row, words in zip(source, target, strict=True):
        sentence = words[words != PAD].tolist()
        inputs = torch.tensor([[BOS, *sentence]])
        hidden = hidden_states(model.transformer, row[row != PAD].unsqueeze(0), inputs)
        logits = model.transformer.logits(hidden)[0]
        wanted = torch.tensor([*sentence, EOS])
        total += F.cross_entropy(logits, wanted, label_smoothing=0.2, reduction="sum").item()
        n_words += len(wanted)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert [number.item() for number in statistics["loss"]] == [loss.item(), n_words]


def test_decoding_is_beam_search() -> None:
    model = eager_to_end(micro("transformer"))
    source = random_batch(9, 3, 6)
    decoding = Decoding(beam=3, length_penalty=0.5, max_ratio=0.5)
    expected = beam_search(model.transformer, source, beam=3, length_penalty=0.5, max_ratio=0.5)
    assert model.translate(source, decoding) == expected
    assert model.rows(decoding) == 3


@pytest.mark.parametrize(
    ("decoding", "text"),
    [
        (Decoding(), "beam 1 (greedy)"),
        (Decoding(5, 0.6, 1.5), "beam 5, length penalty 0.6, length ratio up to 1.5"),
    ],
)
def test_decoding_as_text(decoding: Decoding, text: str) -> None:
    assert str(decoding) == text


def test_learns_to_reverse() -> None:
    model: System = learn("transformer", steps=450)
    for beam in (1, 4):
        assert exact_matches(model, Decoding(beam=beam)) > 0.95
