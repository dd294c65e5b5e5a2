"""Training on the synthetic task, and the scores of its outputs."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from oaxe.losses import xe_loss
from oaxe.systems.cmlm import Model
from oaxe.text.batches import collate
from oaxe.text.symbols import SYMBOLS
from oaxe.training.validation import Validation
from reproduction.folder import Folder
from reproduction.synthetic.recipes import DEMO, METHODS, Recipe
from reproduction.synthetic.scores import NONE, Scores, ordering_of, outputs, repeats, score
from reproduction.synthetic.training import Training
from tests.reproduction.synthetic.test_task import TASK

# Seconds, not minutes: nothing is learned, everything runs.
QUICK = replace(
    DEMO, numbers=12, shortest=4, longest=6, train=200, valid=20, test=30, update_tokens=128,
    xe_updates=5, updates=7, validate_every=5,
)  # fmt: skip


def test_repeats_by_hand() -> None:
    assert repeats([1, 2, 3], [1, 2, 3]) == 0
    assert repeats([1, 2, 3], [1, 1, 1]) == 2
    assert repeats([1, 1, 2], [1, 1, 2]) == 0  # as often as in the source
    assert repeats([1, 2, 3], [7, 8, 9]) == 0  # wrong, but not repeated
    assert repeats([1, 2, 3], [7, 7, 1]) == 1


def test_scores_by_hand() -> None:
    task = replace(TASK, modes=2, numbers=10_000, test=4, shortest=4, longest=4)
    corpus = task.corpus("test", seed=1)
    sources = [source.tolist() for source in corpus.sources]
    assert all(len(set(source)) == 4 for source in sources)
    found = [sources[0], sources[1][::-1], sources[2][2:] + sources[2][:2], [sources[3][0]] * 4]
    assert ordering_of(task, sources[2], found[2]) == NONE  # Flip is not among two orders
    assert score(task, corpus, found, 0.5) == Scores(
        exact_match=50.0,
        repetition=100 * 3 / 16,
        confidence=0.5,
        chosen={"Direct": 1, "Reverse": 1, NONE: 2},
    )


def test_outputs_are_the_likeliest_numbers_in_order(tmp_path: Path) -> None:
    """Batched and sorted by length, against one sentence at a time from the logits."""
    training = quick(tmp_path)
    model, corpus = training.new_model("xe"), training.corpora["test"]
    found, confidence = outputs(model, corpus, batch_tokens=40)
    assert model.training
    model.eval()
    total = 0.0
    for i in range(len(corpus)):
        batch = collate(corpus, np.array([i]))
        inputs = torch.full_like(batch.target, SYMBOLS.index("<mask>"))
        with torch.no_grad():
            logits = logits_of(model, batch.source, inputs)
        logits[:, :, : len(SYMBOLS)] = -torch.inf
        logits[:, :, SYMBOLS.index("<unk>")] = -torch.inf
        probability, best = logits.softmax(-1).max(-1)
        assert found[i] == best[0].tolist()
        total += float(probability.sum())
    assert confidence == pytest.approx(total / corpus.target_lengths.sum(), rel=1e-5)


def logits_of(model: Model, source: Tensor, inputs: Tensor) -> Tensor:
    encoded, _ = model.length.encode(model.transformer, source)
    return model.transformer.logits(model.transformer.decode(inputs, inputs != 0, encoded))


def quick(folder: Path, recipe: Recipe = QUICK, modes: int = 3, seed: int = 1) -> Training:
    return Training(
        recipe, modes, seed, Folder(folder, "task", "quick"), Console(file=io.StringIO())
    )


def test_trains_each_method_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {method: quick(tmp_path).result(method) for method in METHODS}
    for method, result in first.items():
        scores, curve = result["tests"]["test"], result["training"]["validations"]
        assert result["experiment"] == method
        assert sum(scores["chosen"].values()) == QUICK.test
        assert len(scores["examples"][0]["source"]) == len(scores["examples"][0]["output"])
        steps = [point["step"] for point in curve]
        assert steps == sorted(steps)
        assert steps[-1] == QUICK.updates == result["training"]["step"]
    # XE continues from where the others branched off
    xe, oaxe = (first[method]["training"]["validations"] for method in ("xe", "oaxe"))
    switch = [point for point in xe if point["step"] <= QUICK.xe_updates]
    assert oaxe[: len(switch)] == switch
    monkeypatch.setattr(Training, "train", None)
    assert {method: quick(tmp_path).result(method) for method in METHODS} == first


def test_order_of_methods_changes_nothing(tmp_path: Path) -> None:
    """XE trains on in the folder of pre-training: the others must start from before that."""
    one, other = quick(tmp_path / "one"), quick(tmp_path / "other")
    for training, order in ((one, ("xe", "oaxe")), (other, ("oaxe", "xe"))):
        for method in order:
            training.result(method)
    for method in ("xe", "oaxe"):
        a, b = one.result(method), other.result(method)
        losses = [[p["loss"] for p in r["training"]["validations"]] for r in (a, b)]
        assert losses[0] == losses[1]
        assert a["tests"] == b["tests"]


def test_pretraining_is_xe(tmp_path: Path) -> None:
    """Its first validation loss, by hand from the model that training starts with."""
    recipe = replace(QUICK, lr=0.0)
    training = quick(tmp_path, recipe)
    reported = training.result("xe")["training"]["validations"][0]["loss"]
    batch = collate(training.corpora["valid"], np.arange(recipe.valid))
    real = batch.target != 0
    inputs = torch.where(real, SYMBOLS.index("<mask>"), 0)
    model = training.new_model("xe").eval()
    with torch.no_grad():
        logits = logits_of(model, batch.source, inputs)
    expected = xe_loss(logits, batch.target.masked_fill(~real, -100))
    assert reported == pytest.approx(float(expected), rel=1e-4)


def test_weights_with_the_lowest_validation_loss_are_tested(tmp_path: Path) -> None:
    """As in the paper; the rate is so high that the last weights are not the best."""
    recipe = replace(
        QUICK, best_loss=True, norm="post", dropout=0.1, positions="start", inputs=None, lr=0.3,
        warmup=1, xe_updates=4, updates=6, validate_every=1,
    )  # fmt: skip
    training = quick(tmp_path, recipe)
    model = training.train("xe")
    settings = training.settings("xe")
    validation = Validation(training.corpora["valid"], settings, training.ranks, lambda _: 0.0, "")
    losses = [point["loss"] for point in training.curve("xe")]
    assert len(losses) == 6
    assert losses[-1] > min(losses)
    assert validation.statistics(model.eval())["loss"] == pytest.approx(min(losses), rel=1e-5)
