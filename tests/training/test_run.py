"""What a run does besides going on: schedules, another run's weights, its checkpoints, its log."""

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
from safetensors.torch import load_file

from oaxe.losses import annealed_weight
from oaxe.model.transformer import SIZES
from oaxe.support.errors import UserError
from oaxe.text.manifest import SPLITS
from oaxe.text.prepare import prepare
from oaxe.training.log import RunLog
from oaxe.training.run import load_translator
from oaxe.training.settings import Settings
from oaxe.training.trainer import Trainer
from tests.runs import ANNEALED, OAXE, SMALL, make_data, metrics, same, settings_of, train_small


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


def test_init_from(data: Path, tmp_path: Path) -> None:
    train_small(settings_of(data, tmp_path / "first", train__steps=4))

    def start_from(name: str, run: str, prepared: Path, **changes: Any) -> Settings:
        return settings_of(
            prepared, tmp_path / run, train__init_from=str(tmp_path / name), **changes
        )

    with pytest.raises(UserError, match="is no folder"):
        train_small(start_from("nowhere", "a", data))
    assert not (tmp_path / "a").exists()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished/config.yaml").touch()
    with pytest.raises(UserError, match="not finished"):
        train_small(start_from("unfinished", "b", data))
    with pytest.raises(UserError) as error:
        train_small(start_from("first", "c", data, model__system="transformer"))
    assert str(error.value).splitlines() == [
        f"train.init_from {tmp_path / 'first'} is of another architecture:",
        "  model.system: cmlm there, transformer here",
        "Give a model of the same architecture, or change the settings of this run",
    ]
    other = make_data(tmp_path / "other", digits="01234")
    with pytest.raises(UserError, match=r"other subwords.*--subwords"):
        train_small(start_from("first", "d", other))

    changes = {**OAXE, "optim__lr": 0.0, "optim__warmup": 0}
    train_small(start_from("first", "second", data, train__steps=1, **changes))
    models = [load_file(tmp_path / run / "model/model.safetensors") for run in ("first", "second")]
    assert same(*models)
    (tmp_path / "first").rename(tmp_path / "gone")  # only the beginning needs it
    result, _ = train_small(start_from("first", "second", data, train__steps=2, **changes))
    assert result["step"] == 2


@pytest.mark.parametrize("system", ["cmlm", "language_model"])
def test_init_from_a_model_of_the_other_direction(system: str, data: Path, tmp_path: Path) -> None:
    own = {"model__system": system, "train__steps": 1}
    train_small(settings_of(data, tmp_path / "there", **own))
    start = {"train__init_from": str(tmp_path / "there"), **own}

    def turned(source: str, target: str) -> Settings:
        """On the same pairs from right to left, with the same subwords."""
        folder = tmp_path / f"{source}-{target}"
        pairs = {s: (data.parent / f"{s}.tgt", data.parent / f"{s}.src") for s in SPLITS[:2]}
        prepare(
            folder, source_language=source, target_language=target, train=pairs["train"],
            valid=pairs["valid"], subwords=data / "subwords.model",
        )  # fmt: skip
        return settings_of(folder, tmp_path / f"{source}-{target}-run", **start)

    into = r"\? to aa" if system == "language_model" else "bb to aa"
    with pytest.raises(
        UserError, match=rf"there translates aa to bb, but \S+/bb-aa is {into}; give"
    ):
        train_small(turned("bb", "aa"))
    assert not (tmp_path / "bb-aa-run/config.yaml").exists()
    if system == "language_model":  # which has only one language
        assert train_small(turned("cc", "bb"))[0]["step"] == 1
    assert train_small(turned("aa-AA", "bb"))[0]["step"] == 1  # a region is no other language


@pytest.mark.parametrize("system", ["cmlm", "transformer", "ctc", "language_model"])
def test_init_from_a_model_of_other_settings(system: str, data: Path, tmp_path: Path) -> None:
    own = {"model__system": system}
    train_small(settings_of(data, tmp_path / "a", train__steps=1, **own))

    def message(**changes: Any) -> list[str]:
        start = {"train__init_from": str(tmp_path / "a"), **own, **changes}
        with pytest.raises(UserError, match="is of another architecture") as error:
            train_small(settings_of(data, tmp_path / "b", **start))
        assert not (tmp_path / "b").exists()
        return str(error.value).splitlines()[1:-1]

    size = "  model.size: tiny there, small here"
    assert message(model__size="small") == [size]
    assert message(model__size="small", model__norm="pre", model__max_length=40) == [
        size, "  model.max_length: 32 there, 40 here", "  model.norm: post there, pre here",
    ]  # fmt: skip
    if system == "ctc":
        assert message(ctc__upsample=3) == ["  ctc.upsample: 2 there, 3 here"]
    if system == "transformer":  # which the one-pass systems may begin with
        for other in ("cmlm", "ctc"):
            assert message(model__system=other, model__size="small") == [size]
    else:
        kind = f"  model.system: {system} there, transformer here"
        assert message(model__system="transformer", model__size="small") == [kind, size]
    with mock.patch.dict(SMALL, ffn=48):  # a size that has no name
        shapes = message()
    assert len(shapes) == 3
    assert all("has shape" in line for line in shapes)


@pytest.mark.parametrize("system", ["cmlm", "ctc"])
def test_init_from_an_autoregressive_model(system: str, data: Path, tmp_path: Path) -> None:
    """Its weights, but for what it lacks: that is as random as without a start."""
    train_small(
        settings_of(data, tmp_path / "teacher", model__system="transformer", train__steps=4)
    )
    frozen = {"model__system": system, "optim__lr": 0.0, "optim__warmup": 0, "train__steps": 1}
    train_small(settings_of(data, tmp_path / "random", **frozen))
    start = {"train__init_from": str(tmp_path / "teacher")}
    train_small(settings_of(data, tmp_path / "student", **frozen, **start))
    teacher, random, student = (
        load_file(tmp_path / run / "model/model.safetensors")
        for run in ("teacher", "random", "student")
    )
    own = {
        "cmlm": {"length.output.weight", "length.output.bias"},
        "ctc": {"transformer.target_positions.weight"},
    }[system]
    moved = "transformer.source_positions.weight"  # LENGTH comes before the first word
    for name, weights in student.items():
        if name == moved and system == "cmlm":
            assert weights[1:].equal(teacher[name][:-1])
        else:
            assert weights.equal((random if name in own else teacher)[name]), name
    assert student.keys() == random.keys()


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
