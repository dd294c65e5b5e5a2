"""What a run does besides going on: schedules, its checkpoints, its log."""

import io
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console

from oaxe.losses import annealed_weight
from oaxe.model.transformer import SIZES
from oaxe.support.errors import UserError
from oaxe.training.log import RunLog
from oaxe.training.run import load_translator
from oaxe.training.trainer import Trainer
from tests.runs import ANNEALED, SMALL, metrics, settings_of, train_small


@pytest.mark.parametrize("by", ["epochs", "steps"])
def test_annealing_follows_its_formula(data: Path, tmp_path: Path, by: str) -> None:
    updates_an_epoch = 5
    settings = settings_of(
        data,
        tmp_path / "run",
        **ANNEALED,
        train__steps=3 * updates_an_epoch if by == "steps" else 0,
        train__epochs=3 if by == "epochs" else 0,
        train__log_every=1,
    )
    train_small(settings)
    records = [record for record in metrics(tmp_path / "run") if record["what"] == "train"]
    assert len(records) == 3 * updates_an_epoch
    for record in records:
        expected = annealed_weight(record["epoch"], 3)
        assert record.get("xe_weight", 0.0) == pytest.approx(expected, abs=1e-3)
    assert records[0]["xe_weight"] > 0.99
    assert records[-1]["xe_weight"] > 0 or records[-1]["epoch"] >= 0.95 * 3
    if by == "steps":  # they are part of the formula
        with pytest.raises(UserError, match=r"train.steps: 15 there, 16 here"):
            train_small(replace(settings, train=replace(settings.train, steps=16)))


def test_advice_of_the_system_is_printed_once(data: Path, tmp_path: Path) -> None:
    def printed(run: str, truncation: float = 0.0, **changes: Any) -> str:
        loss = {"name": "oaxe", "truncation": truncation}
        settings = settings_of(
            data, tmp_path / run, cmlm__loss=loss, train__steps=6, train__log_every=1, **changes
        )
        return train_small(settings)[1]

    first, truncated = "OaXE from random weights", "% of the words are truncated"
    assert printed("scratch").count(first) == 1
    assert printed("sure", 0.99).count(truncated) == 1
    begun = printed("begun", 1e-9, train__init_from=str(tmp_path / "scratch"))
    annealed = printed("annealed", 0.99, cmlm__annealing=True)
    assert not any(text in out for out in (begun, annealed) for text in (first, truncated))


@pytest.mark.parametrize("by", ["epochs", "steps"])
def test_linear_decay_ends_with_the_run(data: Path, tmp_path: Path, by: str) -> None:
    settings = settings_of(
        data,
        tmp_path / "run",
        optim__lr=1.0e-3,
        optim__warmup=4,
        optim__decay="linear",
        train__steps=10 if by == "steps" else 0,
        train__epochs=2 if by == "epochs" else 0,  # of 5 updates
        train__log_every=1,
    )
    train_small(settings)
    rates = [record["lr"] for record in metrics(tmp_path / "run") if record["what"] == "train"]
    assert rates[3:] == pytest.approx([1e-3 * left / 7 for left in (7, 6, 5, 4, 3, 2, 1)])
    if by == "steps":
        with pytest.raises(UserError, match=r"train.steps: 10 there, 11 here"):
            train_small(replace(settings, train=replace(settings.train, steps=11)))


def test_a_checkpoint_translates_before_the_run_is_finished(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "tiny", SMALL)  # as for train_small
    run = tmp_path / "run"
    train_small(settings_of(data, run, train__steps=5))
    final = load_translator(str(run), "cpu").translate(["1 2 3", "4 5"])
    weights = str(run / "model/model.safetensors")
    assert load_translator(weights, "cpu").translate(["1 2 3", "4 5"]) == final
    shutil.rmtree(run / "model")
    with pytest.raises(UserError, match=r"not finished.*best/step-"):
        load_translator(str(run), "cpu")
    best = run / "best/step-00000005"  # the only one: the average of one
    for path in (best, best / "model.safetensors"):
        assert load_translator(str(path), "cpu").translate(["1 2 3", "4 5"]) == final
    with pytest.raises(UserError, match=r"no checkpoint .*/step-00000004; .*: step-00000005"):
        load_translator(str(run / "best/step-00000004"), "cpu")
    (best / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is damaged"):
        load_translator(str(best), "cpu")


def test_the_log_drops_what_will_be_written_again(tmp_path: Path) -> None:
    lines = [
        json.dumps({"what": what, "step": s}) for s in (1, 2, 3) for what in ("train", "valid")
    ]
    path = tmp_path / "metrics.jsonl"
    for step, validated, count in [(3, True, 6), (2, True, 4), (2, False, 3), (0, True, 0)]:
        path.write_text("\n".join(lines) + '\n{"what": "tra')
        RunLog(tmp_path, Console(quiet=True), step=step, validated=validated).close()
        assert path.read_text() == "".join(f"{line}\n" for line in lines[:count])


@pytest.mark.parametrize(
    ("system", "decoding"),
    [
        ("cmlm", {"length_candidates": 3, "length_penalty": 2.5}),
        ("transformer", {"beam": 2, "length_penalty": 0.5}),
    ],
)
def test_the_decoding_of_validation_is_that_of_the_saved_model(
    system: str, decoding: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    changes = {f"decoding__{name}": value for name, value in decoding.items()}
    train_small(settings_of(data, tmp_path, model__system=system, train__steps=1, **changes))
    assert decoding.items() <= load_translator(str(tmp_path), "cpu").decoding.items()


def test_too_little_memory_is_no_traceback(data: Path, tmp_path: Path) -> None:
    """It goes on with a setting that takes less."""
    settings = settings_of(data, tmp_path / "run", train__steps=6, train__save_every=2)
    step, calls = Trainer.step, itertools.count(1)

    def full(self: Trainer, *arguments: Any) -> float:
        if next(calls) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, *arguments)

    with (
        mock.patch.object(Trainer, "step", full),
        pytest.raises(UserError, match=r"batches of 120 tokens: CUDA.*--set train.cuda_graphs=f"),
    ):
        train_small(settings)
    less = replace(settings, train=replace(settings.train, cuda_graphs=False, recompute=True))
    result, printed = train_small(less)
    assert "resumed from" in printed
    assert "step-00000004" in printed
    assert result["step"] == 6


def test_redirected_runs_show_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first update, and after half a minute without a line."""
    now, printed = [0.0], io.StringIO()
    monkeypatch.setattr("oaxe.training.log.time.monotonic", lambda: now[0])
    log = RunLog(tmp_path, Console(file=printed, width=200), step=7)
    for step in range(8, 13):
        now[0] += 20
        if step == 10:
            log.write({"what": "train", "step": step, "loss": 1.0})
        log.advance(step, 1000)
    log.close()
    assert printed.getvalue().splitlines() == [
        "step 8 of 1,000",
        "train: step 10, loss 1.000",
        "step 12 of 1,000",
    ]


def test_the_bar_counts_before_the_first_figures(tmp_path: Path) -> None:
    printed = io.StringIO()
    log = RunLog(tmp_path, Console(file=printed, width=200, force_terminal=True), step=0)
    log.advance(3, 1000)
    log.close()
    assert "step 3" in printed.getvalue()


@pytest.mark.parametrize("content", ["[{", "{}", "\udcff", "[" * 5000])
def test_a_damaged_log_of_starts_does_not_stop_a_run(
    content: str, data: Path, tmp_path: Path
) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=1, validation__max_sentences=1)
    (tmp_path / "run").mkdir()
    log = tmp_path / "run/environment.json"
    log.write_bytes(content.encode(errors="surrogateescape"))
    train_small(settings)
    assert "time" in json.loads(log.read_text())[-1]


@pytest.mark.parametrize("content", ["", "{", '{"a": 1'])
def test_damaged_checksums_of_the_data_are_told(data: Path, tmp_path: Path, content: str) -> None:
    settings = settings_of(data, tmp_path / "run", train__steps=2)
    train_small(settings)
    (tmp_path / "run/data.json").write_text(content)
    with pytest.raises(UserError, match=r"data\.json, .* is damaged; .* remove this file"):
        train_small(settings)
    (tmp_path / "run/data.json").unlink()
    train_small(settings)


@pytest.mark.parametrize("line", ["[]", '{"step": 3}', '{"step": "x", "what": "train"}', '{"ste'])
def test_a_damaged_log_is_read_up_to_the_damage(tmp_path: Path, line: str) -> None:
    good = '{"step": 1, "what": "train", "loss": 2.0}\n'
    (tmp_path / "metrics.jsonl").write_text(f"{good}{line}\n{good}")
    RunLog(tmp_path, Console(file=io.StringIO()), step=9).close()
    assert (tmp_path / "metrics.jsonl").read_text() == good
