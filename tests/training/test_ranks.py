"""How many processes share the work, and in how many pieces, changes nothing but rounding."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oaxe.text.batches import Update, UpdateLoader, collate
from oaxe.text.corpus import Corpus
from oaxe.text.plans import Limits, plan_epoch
from oaxe.training.ranks import Ranks
from oaxe.training.run import new_system
from oaxe.training.trainer import Trainer
from tests.runs import final_tensors, free_port, metrics, settings_of, train_on_ranks, train_small

EXACT = {"model__dropout": 0.0, "cmlm__inputs": "unobserved"}  # nothing random in an update


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 2e-4) -> None:
    """Adam divides by the gradient's size, which makes rounding errors larger."""
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


def assert_same_log(one: Path, other: Path) -> None:
    for a, b in zip(metrics(one), metrics(other), strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert b[name] == (
                pytest.approx(value, rel=1e-3, abs=1e-6) if isinstance(value, float) else value
            ), name


@pytest.mark.parametrize("loss", ["xe", "oaxe"])
def test_two_ranks_are_one(loss: str, data: Path, tmp_path: Path) -> None:
    changes = {"train__steps": 6, "validation__every": 3, "cmlm__loss": loss, **EXACT}
    train_small(settings_of(data, tmp_path / "one", **changes))
    assert train_on_ranks(settings_of(data, tmp_path / "two", **changes)) == ["", ""]
    assert_close(final_tensors(tmp_path / "two"), final_tensors(tmp_path / "one"))
    written = [record["what"] for record in metrics(tmp_path / "one")]
    assert written == ["train", "valid", "train", "valid"]
    assert_same_log(tmp_path / "one", tmp_path / "two")


def test_fewer_sentences_than_ranks(data: Path, tmp_path: Path) -> None:
    """An update of one or two sentences, and a validation of one, for three ranks."""
    changes: dict[str, Any] = {
        **EXACT,
        "data__update_tokens": 6,
        "train__steps": 4,
        "train__log_every": 1,  # also where a rank has nothing to log
        "validation__max_sentences": 1,
    }
    corpus = Corpus.open(data, "train")
    lengths = corpus.source_lengths, corpus.target_lengths
    plan = plan_epoch(
        *lengths, Limits(max_tokens=120, update_tokens=6, seed=1, epoch=0, world_size=3)
    )
    assert min(sum(map(len, update)) for update in plan[:4]) < 3
    train_small(settings_of(data, tmp_path / "one", **changes))
    assert train_on_ranks(settings_of(data, tmp_path / "three", **changes), 3) == [""] * 3
    assert_close(final_tensors(tmp_path / "three"), final_tensors(tmp_path / "one"))
    assert_same_log(tmp_path / "one", tmp_path / "three")


def test_validation_on_two_ranks_is_that_of_one(data: Path, tmp_path: Path) -> None:
    more = {"train__steps": 60, "optim__lr": 1e-2, "model__dropout": 0.0}  # for a BLEU above 0
    settings = settings_of(data, tmp_path / "run", **more)
    alone, _ = train_small(settings)
    assert alone["bleu_of_average"] > 0
    assert train_on_ranks(settings) == ["", ""]  # the average is scored again
    assert json.loads((tmp_path / "run/result.json").read_text()) == alone


def test_ranks_continue(data: Path, tmp_path: Path) -> None:
    """Two ranks, stopped and started again, end bit for bit as two that never were."""
    for steps in (5, 9):
        train_on_ranks(settings_of(data, tmp_path / "twice", train__steps=steps))
    train_on_ranks(settings_of(data, tmp_path / "once", train__steps=9))
    a, b = final_tensors(tmp_path / "once"), final_tensors(tmp_path / "twice")
    assert all(a[name].equal(b[name]) for name in a)
    assert metrics(tmp_path / "once") == metrics(tmp_path / "twice")


def test_every_rank_stops_at_a_number_that_is_not_finite(data: Path, tmp_path: Path) -> None:
    settings = settings_of(data, tmp_path / "run", train__save_every=1)
    messages = train_on_ranks(settings, poisoned_rank=1)
    assert messages[0] == messages[1]
    assert re.search(r"the loss of update \d+ is nan, in the batch of training pairs", messages[0])
    assert all(tensor.isfinite().all() for tensor in final_tensors(tmp_path / "run").values())


@pytest.mark.parametrize("loss", ["xe", "oaxe", "axe"])
def test_four_pieces_are_one(loss: str, data: Path, tmp_path: Path) -> None:
    """Sentences of unequal length: a mean of means would show."""
    corpus = Corpus.open(data, "train")
    indices = np.argsort(corpus.target_lengths, kind="stable")[[0, 40, 80, -1]]
    assert len(set(corpus.target_lengths[indices].tolist())) > 2
    settings = settings_of(data, tmp_path / "run", cmlm__loss=loss, **EXACT)
    gradients = []
    for pieces in (1, 4):
        torch.manual_seed(1)
        system = new_system(settings, 28)
        alone = Ranks(0, 1, torch.device("cpu"))
        trainer = Trainer(settings, system, corpus, None, alone, None)  # type: ignore[arg-type]
        batches = [collate(corpus, part) for part in np.array_split(indices, pieces)]
        trainer.step(Update(0, 0, 1, batches, 0))
        gradients.append({n: p.grad for n, p in system.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 20
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-7)


def test_the_loader_gives_each_sentence_to_one_rank(data: Path) -> None:
    corpus = Corpus.open(data, "train")
    limits = Limits(120, 200, seed=1, epoch=0, world_size=2)
    seen = []
    for rank in range(2):
        with UpdateLoader(corpus, limits, rank=rank) as loader:
            first = next(loader)
            updates = [first, *(next(loader) for _ in range(first.n_updates - 1))]
            seen += [i for u in updates for b in u.batches for i in b.indices.tolist()]
    assert sorted(seen) == list(range(len(corpus)))


def test_sigterm_to_torchrun_stops_all_ranks(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = tmp_path / "config.yaml"
    config.write_text(
        f"run: {run}\ndata: {{folder: {data}, update_tokens: 200, batch_tokens: 200}}\n"
        "model: {size: tiny, max_length: 32}\ntrain: {steps: 100000, log_every: 1}\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    command += ["-m", "oaxe", "train", str(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": ""}
    with (tmp_path / "printed.txt").open("w+") as printed:
        process = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, env=environment
        )
        records, deadline = run / "metrics.jsonl", time.monotonic() + 60
        while not (records.exists() and records.read_text().count("\n") > 2):
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.wait(40)  # after 30 seconds, torchrun would kill its ranks
        printed.seek(0)
        said = printed.read().splitlines()
        assert "interrupted; the same command continues from here" in said
        assert any(line.endswith(f"run {run}") for line in said)  # however long: no terminal
    (newest,) = (run / "checkpoints").iterdir()
    state = json.loads((newest / "state.json").read_text())
    last = json.loads(records.read_text().splitlines()[-1])
    assert state["step"] == last["step"] > 2
