"""DDRS: references of a target, the loss by plain loops, how it is trained, and that it learns."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from oaxe.support.errors import UserError
from oaxe.systems.ddrs import Decoding, Model
from oaxe.text.symbols import BLANK, EOS, PAD
from oaxe.training.ranks import join
from oaxe.training.run import gather, train
from tests.models import hidden_states, micro, random_batch
from tests.runs import make_data, same, settings_of
from tests.systems.digits import both_ways, exact_matches, learn
from tests.systems.test_systems import progress_of, training_batch


def ddrs(**options: float) -> Model:
    model = micro("ddrs", options=options, dropout=0.0)
    assert isinstance(model, Model)
    model.train()
    return model


def test_loss_is_that_of_the_references() -> None:
    model = ddrs()
    source = random_batch(5, 4)
    rows = [[8, 9, EOS, 10, EOS, 8, 8], [7, 7, 7, EOS, 9]]
    target = torch.tensor([row + [PAD] * (7 - len(row)) for row in rows])
    example = model.example(source, target)
    assert int(example.n_words) == 12
    for epoch in (0.0, 1.0):
        loss, statistics = model(example, progress_of(model, epoch, 1.0))
        total = torch.zeros(())
        references = ([[8, 9], [10], [8, 8]], [[7, 7, 7], [9]])
        for sentence, texts in zip(source, references, strict=True):
            losses = losses_of(model, sentence[sentence != PAD], texts)
            total = total + len(texts) * (losses.min() if epoch else losses.mean())
        torch.testing.assert_close(loss, total, rtol=1e-5, atol=1e-4)
        weights = [*model.parameters()]
        pairs = (torch.autograd.grad(x, weights, materialize_grads=True) for x in (loss, total))
        for mine, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
        assert statistics["loss"][0] == loss


def losses_of(model: Model, sentence: Tensor, texts: list[list[int]]) -> Tensor:
    inputs = sentence.repeat_interleave(2).unsqueeze(0)
    hidden = hidden_states(model.transformer, sentence[None], inputs)
    log_probs = model.transformer.logits(hidden)[0].log_softmax(1)
    sizes = torch.tensor(len(log_probs))
    return torch.stack(
        [
            F.ctc_loss(
                log_probs, torch.tensor(text), sizes, torch.tensor(len(text)), blank=BLANK,
                reduction="sum",
            )
            for text in texts
        ]
    )  # fmt: skip


@pytest.mark.parametrize("epoch", [0.0, 0.5, 1.0])
def test_with_one_reference_it_is_ctc(epoch: float) -> None:
    model, plain = ddrs(), micro("ctc", dropout=0.0).train()
    plain.load_state_dict(model.state_dict())
    source, target = training_batch(12, 5, 9)
    losses = [
        one(one.example(source, target), progress_of(one, epoch, 1.0))[0] for one in (model, plain)
    ]
    torch.testing.assert_close(*losses)


def test_counts_sentences_of_which_no_reference_fits() -> None:
    model = ddrs(upsample=1)
    source = random_batch(3, 3)
    target = torch.tensor([[8, 8, 8, EOS, 9], [7, 7, 7, PAD, PAD]])
    _, statistics = model(model.example(source, target), progress_of(model))
    assert [x.item() for x in statistics["impossible"]] == [1, 2]


def test_only_several_references_need_an_end() -> None:
    assert ddrs().options.needs_end
    assert not ddrs(references=1).options.needs_end


def test_takes_the_whole_of_a_ctc_model() -> None:
    model, other = ddrs(), micro("ctc")
    assert same(model.weights_from(other), other.state_dict())


def test_trains_with_the_targets_of_several_folders(data: Path, tmp_path: Path) -> None:
    settings = settings_of(
        data,
        tmp_path / "run",
        model__system="ddrs",
        data__references=[str(data), str(data)],
        train__steps=2,
    )
    corpus = gather(settings, join()).corpus
    first = corpus.targets[0].tolist()
    n = (len(first) - 2) // 3
    assert first == [*first[:n], EOS, *first[:n], EOS, *first[:n]]
    assert train(settings, Console(quiet=True))["step"] == 2
    sums = json.loads((tmp_path / "run/data.json").read_text())  # also of the references
    assert sums[f"{data}/train.target.tokens.npy"] == sums["train.target.tokens.npy"]


def test_rejects_folders_of_other_subwords_and_too_many(data: Path, tmp_path: Path) -> None:
    other = make_data(tmp_path / "other", pairs=30, digits="01234567")
    given = {"model__system": "ddrs", "data__references": [str(other)]}
    with pytest.raises(UserError, match=r"has other subwords than .* prepare it with --subwords"):
        gather(settings_of(data, tmp_path / "run", **given), join())
    with pytest.raises(UserError, match="that is 2 targets of a source, of which ctc takes 1"):
        settings_of(data, tmp_path / "run", **given | {"model__system": "ctc"})


def test_learns_the_easier_of_two_references() -> None:
    """To copy, for a decoder that reads the source; it does not mix the two."""
    model = learn("ddrs", steps=100, strings=both_ways, references=2)
    assert exact_matches(model, Decoding(), copied=True) > 0.9
