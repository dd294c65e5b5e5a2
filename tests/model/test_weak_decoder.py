"""The weak decoder: its loss word by word, what it sees, and that finished models lack it."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.nn.functional as F

from oaxe.decoding.saved import load_folder, save_folder
from oaxe.model.masking import IGNORED
from oaxe.model.transformer import Encoded
from oaxe.model.weak_decoder import WeakDecoder
from oaxe.systems import System
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import BOS, EOS, PAD
from oaxe.training.start import take_over
from tests.models import micro
from tests.runs import same
from tests.systems.test_systems import progress_of, training_batch


def weak(name: str = "ctc", norm: str = "pre") -> System:
    return micro(name, norm, options={"weak_decoder": 0.5}, dropout=0.0).train()


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("name", ["ctc", "dag"])
def test_loss_is_that_of_each_word_after_those_before(name: str, norm: str) -> None:
    """One sentence and one word at a time, with torch's own cross entropy."""
    model = weak(name, norm)
    source, target = training_batch(9, 5, 12)
    example, transformer, decoder = model.example(source, target), model.transformer, model.weak
    assert isinstance(decoder, WeakDecoder)
    hidden = transformer.decode(example.inputs, example.mask, transformer.encode(source))
    words = [row[row != PAD] for row in target]
    sentences = torch.full((3, max(map(len, words)) + 2), IGNORED)
    total = torch.zeros(())
    for row, said in enumerate(words):
        whole = torch.tensor([BOS, *said.tolist(), EOS])
        sentences[row, : len(whole)] = whole
        states = hidden[row : row + 1, example.mask[row]]
        memory = Encoded(states, torch.ones(states.shape[:2], dtype=torch.bool))
        for n in range(1, len(whole)):
            x = transformer.tokens(whole[None, :n]) + decoder.positions.weight[:n]
            x = decoder.decoder[0](decoder.input_norm(x), None, memory, True)
            logits = transformer.logits(decoder.output_norm(x))[0, -1]
            total = total + F.cross_entropy(logits, whole[n], label_smoothing=0.1)
    loss, statistics = decoder.loss(transformer, sentences, hidden, example.mask)
    torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-4)
    assert int(statistics["weak_loss"][1]) == sum(map(len, words)) + 3


def test_weighs_as_the_option_says_and_only_in_training() -> None:
    model = weak()
    example = model.example(*training_batch(9, 5, 12))
    loss, statistics = model(example, progress_of(model))
    expected = statistics["loss"][0] + 0.5 * statistics["weak_loss"][0]
    torch.testing.assert_close(loss, expected)
    loss, statistics = model.eval()(example, progress_of(model))
    assert "weak_loss" not in statistics
    assert loss == statistics["loss"][0]


def test_rows_without_a_sentence_have_no_loss() -> None:
    model = weak()
    source, target = training_batch(9, 5)
    both = [torch.cat([x, torch.full_like(x[:1], PAD)]) for x in (source, target)]
    losses = []
    for given in ((source, target), both):
        _, statistics = model(model.example(*given), progress_of(model))
        losses.append(statistics["weak_loss"])
    torch.testing.assert_close(losses[1], losses[0])


@pytest.mark.parametrize("name", ["ctc", "ctc_glat", "dag"])
def test_a_finished_model_lacks_it(name: str, tmp_path: Path) -> None:
    model = weak(name).eval()
    save_folder(
        tmp_path,
        model,
        cast(Subwords, SimpleNamespace(model=b"subwords")),
        {"languages": ["en", "de"], "decoding": {}},
    )
    found, _, _ = load_folder(tmp_path)
    assert isinstance(found, System)
    kept = {n: w for n, w in model.state_dict().items() if not n.startswith("weak.")}
    assert len(kept) < len(model.state_dict())
    assert same(found.state_dict(), kept)
    assert found.options == model.options
    source, target = training_batch(9, 5)
    decoding = model.decoding_type()
    assert found.translate(source, decoding) == model.translate(source, decoding)
    found.train()(found.example(source, target), progress_of(found))
    again = weak(name)
    start = take_over(again, found)
    assert start.new == ["weak.*"]
    assert not start.is_doubtful
