"""Configurations by name, those of the package and those of the documents."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.commands.config import SHIPPED, find_configuration, shipped
from oaxe.support.errors import UserError
from oaxe.systems import built_in
from oaxe.training.settings import documented_settings, load_settings

ROOT = Path(__file__).parents[2]


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["config", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_there_are_shipped_configurations() -> None:
    assert len(shipped()) >= 8
    assert list(shipped()) == sorted(shipped())


@pytest.mark.parametrize("name", shipped())
def test_shipped_configurations_load(name: str) -> None:
    path = shipped()[name]
    settings = load_settings(path)
    command, about, *_ = path.read_text().splitlines()
    assert command == f"# oaxe train {name}"
    assert re.fullmatch(r"# [A-Z].*\.", about)
    assert settings.run == f"runs/{name}"


@pytest.mark.parametrize("name", shipped())
def test_shipped_configurations_start_from_one_another(name: str) -> None:
    settings = load_settings(shipped()[name])
    if settings.model.system in ("transformer", "language_model"):
        assert settings.train.init_from is None
        return
    assert settings.train.init_from is not None
    start = load_settings(shipped()[settings.train.init_from.removeprefix("runs/")])
    assert start.model.size == settings.model.size
    assert load_settings(shipped()[name], ["train.init_from=null"]).train.init_from is None


def test_find_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped_file = SHIPPED / "multi30k" / "oaxe.yaml"
    (tmp_path / "multi30k" / "oaxe").mkdir(parents=True)  # a folder is not a configuration
    assert find_configuration("multi30k/oaxe") == shipped_file
    (tmp_path / "multi30k" / "xe").write_text("run: x")  # a file is preferred to a name
    assert find_configuration("multi30k/xe") == Path("multi30k/xe")
    assert find_configuration(str(shipped_file)) == shipped_file


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("multi30k/oax", "did you mean multi30k/oaxe? "),
        ("configs/multi30k/oaxe.yaml", "did you mean multi30k/oaxe? "),
        ("multi30k/at-cpu.yaml", "did you mean multi30k/at-cpu? "),
        ("zzz", ""),
    ],
)
def test_unknown_names_suggest_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UserError) as caught:
        find_configuration(name)
    assert str(caught.value) == (
        f"there is no file {name} and no configuration of that name; {nearest}"
        "`oaxe config list` shows all names"
    )


def test_list() -> None:
    described = dict(line.split(maxsplit=1) for line in run("list").splitlines())
    assert list(described) == list(shipped())
    assert described["multi30k/lm"].startswith("Language model of the target side, for the fluency")


def test_show_prints_every_setting() -> None:
    assert run("show") == documented_settings("cmlm")
    assert run("show", "--system", "ctc") == documented_settings("ctc")


def test_lists_the_systems() -> None:
    lines = run("systems").splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == built_in()
    assert all("https://" in line for line in lines if line.startswith(" "))


def test_show_prints_a_configuration() -> None:
    assert run("show", "multi30k/oaxe") == (SHIPPED / "multi30k" / "oaxe.yaml").read_text()


def test_check_reports_all_configurations(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("runs: x\n")
    assert run("check", "multi30k/oaxe", str(SHIPPED / "multi30k" / "xe.yaml")).count(": fine") == 2
    output = run("check", str(bad), "multi30k/oax", "multi30k/oaxe", code=1)
    assert "runs is not an option; did you mean run?" in output
    assert "did you mean multi30k/oaxe?" in output
    assert "multi30k/oaxe: fine" in output
    output = run("check", "multi30k/oaxe", "--set", "optim.lrr=1", code=1)
    assert "optim.lrr is not an option; did you mean optim.lr?" in output


@pytest.mark.parametrize(
    ("page", "runs"),
    [
        ("docs/start/translator.md", 3),
        ("docs/training.md", 5),
        ("docs/distillation.md", 6),
        ("docs/evaluation.md", 1),
    ],
)
def test_documented_commands_load(page: str, runs: int) -> None:
    """Each starts from a run that an earlier command of the same page makes."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", "")
    found: list[str] = []
    for line in re.findall(r"^oaxe train (.*)", text, re.MULTILINE):
        name, *options = shlex.split(line, comments=True)
        assert {*options[::2]} <= {"--set"}
        settings = load_settings(find_configuration(name), options[1::2])
        assert settings.train.init_from in (None, *found)
        found.append(settings.run)
    assert len({*found}) == runs
