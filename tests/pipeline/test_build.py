"""A whole build of a tiny model: stopped after every stage, stopped within one, and its report."""

import io
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.decoding.translator import Translator
from oaxe.pipeline import plan as planning
from oaxe.pipeline import report, stages
from oaxe.pipeline.plan import Asked, ask
from oaxe.pipeline.stages import Build, Stage, build
from oaxe.support.errors import UserError
from oaxe.text.lines import Pair, read_lines
from oaxe.training import trainer
from tests.pipeline.small import make_small
from tests.runs import FORKS, end_despite_kills

WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]
NAMES = [
    "hold out", "prepare", "teacher", "distil", "prepare distilled text", "one-pass", "bigrams",
    "n-grams", "export", "report", "model",
]  # fmt: skip


class Killed(BaseException):
    pass


def write_text(folder: Path, pairs: int = 240) -> Pair:
    rng = random.Random(1)
    lines = [rng.choices(WORDS, k=rng.randint(2, 6)) for _ in range(pairs)]
    files = folder / "a.aa", folder / "a.bb"
    files[0].write_text("".join(" ".join(line) + "\n" for line in lines))
    files[1].write_text("".join(" ".join([*line[:-1], "Ende"]) + "\n" for line in lines))
    return files


def asked_for(pair: Pair, **changes: Any) -> Asked:
    how: dict[str, Any] = {"minutes": 1.0, "device": "cpu"} | changes
    return ask("aa", "bb", {"train": pair, "valid": None, "test": None}, **how)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def stopping_after(name: str) -> Callable[[Build], Iterator[Stage]]:
    """The stages, with a kill as soon as one of them is done."""
    original = Build.stages

    def found(self: Build) -> Iterator[Stage]:
        for stage in original(self):
            yield stage
            if stage.name == name:
                raise Killed

    return found


def test_a_build_that_is_killed_after_every_stage(tmp_path: Path) -> None:
    out, asked = tmp_path / "out", asked_for(write_text(tmp_path), distil=True)
    worked: list[str] = []
    for name in [*NAMES, ""]:
        said = console()
        with mock.patch.object(Build, "stages", stopping_after(name)):
            if name:
                with pytest.raises(Killed):
                    build(out, asked, said)
            else:
                assert build(out, asked, said)
        text = said.file.getvalue()  # type: ignore[attr-defined]
        worked += [n for n in NAMES if f"{n}:\n" in text]
        before = NAMES[: NAMES.index(name)] if name else NAMES
        assert all(f"{n}: done\n" in text for n in before)
    assert worked == NAMES  # each of them once
    found = json.loads((out / "report.json").read_text())
    by_ctranslate = [name for name in report.CTRANSLATE if find_spec("ctranslate2")]
    assert list(found["models"]) == [
        report.TEACHER, report.TEACHER_BEAM, report.ONE_PASS, report.ONE_PASS_BEAM, report.ENGINE,
        report.ENGINE_BEAM, *by_ctranslate,
    ]  # fmt: skip
    for name, ours in zip(by_ctranslate, (report.TEACHER, report.TEACHER_BEAM), strict=False):
        theirs = found["models"][name]
        assert theirs["folder"] == str(out / "teacher-cpu")
        assert theirs["parameters"] == found["models"][ours]["parameters"]
    exported = Translator.from_pretrained(out / "cpu")
    assert found["models"][report.ENGINE_BEAM]["decoding"] == str(exported.decoding_with())
    assert exported.decoding["lm"] == str(out / "cpu" / "ngrams")
    assert "beam" not in found["models"][report.ENGINE]["decoding"]
    assert found["recommended"] in found["models"]
    assert found["why"] in text
    translator = Translator.from_pretrained(out / "model")
    assert translator.system.name == "ctc_glat"
    assert translator.languages == ("aa", "bb")
    assert len(translator.translate(["eins zwei", "acht"])) == 2
    card = (out / "model" / "README.md").read_text()
    for part in (
        'language: ["aa", "bb"]',
        "valid 12 pairs",
        "trained for 55 updates of 256",
        asked.command,
        found["why"],
    ):
        assert part in card
    distilled, kept = (read_lines(out / f) for f in ("distilled/train.bb", "text/train.target"))
    assert 200 < len(distilled) == len(kept) <= 228  # repeated pairs are held out as well
    assert distilled != kept


def test_a_graph_is_exported_with_its_n_grams(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert build(out, asked_for(write_text(tmp_path), system="dag"), console())
    exported = Translator.from_pretrained(out / "cpu").decoding_with()
    assert str(exported).startswith("beam 20 over all paths")
    found = json.loads((out / "report.json").read_text())["models"]
    assert found[report.ENGINE_BEAM]["decoding"] == str(exported)
    assert "joint Viterbi" in found[report.ENGINE]["decoding"]


def test_a_training_that_is_killed_goes_on(tmp_path: Path) -> None:
    out, asked = tmp_path / "out", asked_for(write_text(tmp_path))
    step, steps = trainer.Trainer.step, list[int]()

    def counting(self: Any, update: Any) -> float:
        if len(steps) == 30:
            steps.append(-1)
            raise Killed
        steps.append(self.position.step)
        return step(self, update)

    with mock.patch.object(trainer.Trainer, "step", counting):
        with pytest.raises(Killed):
            build(out, asked, console())
        with mock.patch.object(Build, "stages", stopping_after("teacher")), pytest.raises(Killed):
            build(out, asked, console())
    again = steps[steps.index(-1) + 1]
    assert 0 < again <= 30
    assert json.loads((out / "teacher" / "result.json").read_text())["step"] == steps[-1] + 1


def _build(out: Path, asked: Asked) -> None:
    """In a process of its own, which shares nothing with this one."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        patch.setattr(stages, "LONGER", 1e3)  # trainings count the seconds of all starts
        build(out, asked, console())


def ended(out: Path) -> dict[str, bytes]:
    """What a build leaves for its user, without what says when and how fast."""
    names = ["plan.yaml", "cpu", "model", "ngrams", "text", "configs"]
    paths = [path for name in names for path in (out / name, *(out / name).rglob("*"))]
    return {
        str(path.relative_to(out)): path.read_bytes().replace(bytes(out), b"OUT")
        for path in paths
        if path.is_file() and path.name not in ("README.md", "environment.json")
    }


def test_a_build_that_is_killed_at_random_moments(tmp_path: Path) -> None:
    asked = asked_for(write_text(tmp_path))
    began = time.monotonic()
    once = FORKS.Process(target=_build, args=(tmp_path / "once", asked))
    once.start()
    once.join()
    whole = time.monotonic() - began
    assert once.exitcode == 0
    end_despite_kills(_build, (tmp_path / "out", asked), kills=4, longest=0.3 * whole)
    left, wanted = ended(tmp_path / "out"), ended(tmp_path / "once")
    assert len(wanted) > 15
    assert left.keys() == wanted.keys()
    assert [name for name in wanted if left[name] != wanted[name]] == []


def test_an_interrupted_training_ends_the_build(tmp_path: Path) -> None:
    out, asked = tmp_path / "out", asked_for(write_text(tmp_path))
    with mock.patch.object(stages, "train", return_value={"stopped": trainer.INTERRUPTED}):
        assert not build(out, asked, console())
    assert not (out / "one-pass").exists()


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    asked, said = asked_for(write_text(tmp_path)), console()
    assert build(tmp_path / "out", asked, said, dry_run=True)
    assert not (tmp_path / "out").exists()
    text = said.file.getvalue()  # type: ignore[attr-defined]
    assert "240 pairs, 12 of them held out" in text
    assert "size tiny" in text


def test_the_command(tmp_path: Path) -> None:
    source, target = map(str, write_text(tmp_path))
    words = ["build", str(tmp_path / "out"), "--from", "aa", "--to", "bb", "--minutes", "1"]
    result = CliRunner().invoke(app, [*words, "--train", source, target, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "teacher (autoregressive)" in result.output
    assert not (tmp_path / "out").exists()
    with mock.patch.object(stages, "train", return_value={"stopped": trainer.INTERRUPTED}):
        assert CliRunner().invoke(app, [*words, "--train", source, target]).exit_code == 130


def test_a_folder_of_another_build(tmp_path: Path) -> None:
    pair, out = write_text(tmp_path), tmp_path / "out"
    with mock.patch.object(Build, "stages", stopping_after("hold out")), pytest.raises(Killed):
        build(out, asked_for(pair), console())
    with pytest.raises(UserError, match=r"(?s)another build:.*minutes: 1.0 there, 2.0 here"):
        build(out, asked_for(pair, minutes=2.0), console())
    pair[0].write_text(pair[0].read_text().replace("eins", "zwei"))
    with pytest.raises(UserError, match=r"train.source: .*a.aa \(crc32 .* there, .*a.aa"):
        build(out, asked_for(pair), console())
    with pytest.raises(UserError, match=r"holds no build: it has no plan.yaml"):
        build(tmp_path, asked_for(pair), console())


def test_the_better_of_the_two_one_pass_models_is_kept(tmp_path: Path) -> None:
    def plan(updates: int) -> planning.Plan:
        found = planning.make_plan(asked, lambda *_: 0.1)
        return replace(found, bigrams=replace(found.bigrams, updates=updates))

    asked = asked_for(write_text(tmp_path))
    for name, bleu in (("one-pass", 30.0), ("bigrams", 29.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"bleu": bleu}))
    assert Build(tmp_path, plan(9), console()).finished.name == "one-pass"
    (tmp_path / "bigrams" / "result.json").write_text(json.dumps({"bleu": 31.0}))
    assert Build(tmp_path, plan(9), console()).finished.name == "bigrams"
    assert Build(tmp_path, plan(0), console()).finished.name == "one-pass"


def test_a_slower_machine_has_fewer_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SLOWER", 1.1)
    asked = asked_for(write_text(tmp_path))
    made = Build(tmp_path, planning.make_plan(asked, lambda *_: 0.1), console())
    planned = made.plan.one_pass
    assert made.paced(planned) == planned
    (tmp_path / "teacher").mkdir()
    for seconds, factor in ((5.0, 1.0), (10.9, 1.0), (25.0, 2.5)):
        result = json.dumps({"step": 100, "seconds": seconds})
        (tmp_path / "teacher" / "result.json").write_text(result)
        found = made.paced(planned)
        assert found.updates == int(planned.updates / factor)
        assert found.seconds == pytest.approx(planned.seconds * factor)
        assert found.minutes <= planned.minutes


def test_export_comes_before_the_report_where_there_is_one(tmp_path: Path) -> None:
    asked, said = asked_for(write_text(tmp_path)), console()
    made = Build(tmp_path, planning.make_plan(asked, lambda *_: 0.1), said)
    with mock.patch.object(stages, "find_spec", return_value=None):
        assert [stage.name for stage in made.stages()][-3:] == ["n-grams", "report", "model"]
    with mock.patch.object(stages, "find_spec", return_value=object()):
        assert [stage.name for stage in made.stages()][-3:] == ["export", "report", "model"]
    with (
        mock.patch.object(Build, "finished", tmp_path),
        mock.patch.object(stages, "load_translator", return_value=mock.Mock()) as load,
        mock.patch.object(stages, "best_beam", return_value={}),
        mock.patch.object(stages, "export") as export,
        mock.patch.object(stages, "find_spec", return_value=None),
    ):
        made.export()
        export.assert_called_once_with(load(), tmp_path / "cpu", int8=True)
        with mock.patch.object(stages, "find_spec", return_value=object()):
            made.export()
        teacher = mock.call(load(), tmp_path / "teacher-cpu", int8=True, format="ctranslate2")
        assert teacher in export.mock_calls
        export.side_effect = UserError("it cannot")
        made.export()
    assert "no model for a CPU: it cannot" in said.file.getvalue()  # type: ignore[attr-defined]
