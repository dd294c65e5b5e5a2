"""The command line as a user meets it, in a process of its own."""

import errno
import os
import re
import subprocess
import sys
from importlib.metadata import version
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner

import oaxe
from oaxe.commands import app
from reproduction.__main__ import app as reproduction


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oaxe", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_help_and_version() -> None:
    result = run("--help")
    assert result.returncode == 0
    commands = "prepare train translate serve distill evaluate config data"
    for command in commands.split():
        assert f" {command} " in result.stdout
    assert run("--version").stdout.strip() == oaxe.__version__


def test_a_mistake_of_the_user_shows_no_traceback() -> None:
    result = run("train", "multi30k/oax")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        "error: there is no file multi30k/oax and no configuration of that name; "
        "did you mean multi30k/oaxe? `oaxe config list` shows all names\n"
    )


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "make room there"), (errno.EACCES, "chmod"), (errno.ELOOP, "leads to itself")],
)
def test_errors_of_the_system_show_no_traceback(
    number: int, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number), "some/file")

    program = typer.Typer(pretty_exceptions_enable=False)
    program.command()(fail)
    with mock.patch.object(sys, "argv", ["oaxe"]), pytest.raises(SystemExit) as left:
        app.run(program)
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: some/file: {os.strerror(number)}; ")
    assert advice in said


def test_a_bug_shows_its_traceback() -> None:
    def fail() -> None:
        raise FileNotFoundError(errno.ENOENT, "ours")

    program = typer.Typer(pretty_exceptions_enable=False)
    program.command()(fail)
    with mock.patch.object(sys, "argv", ["oaxe"]), pytest.raises(FileNotFoundError):
        app.run(program)


@pytest.mark.parametrize(
    ("program", "names"), [(app.app, "train"), (reproduction, "synthetic, main")]
)
def test_an_unknown_command_lists_those_that_there_are(program: typer.Typer, names: str) -> None:
    result = CliRunner().invoke(program, ["nonsense"], env={"COLUMNS": "500"})
    assert result.exit_code == 2
    assert re.search(f"no such command: nonsense. There are .*{names}", result.output)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tr", ["train", "translate"]),
        ("train multi30k/dag", ["multi30k/dag", "multi30k/dag-ngrams"]),
        ("config show tatoeba/a", ["tatoeba/at-small"]),
        ("data get newstest", ["newstest-en-de"]),
        ("translate --mod", ["--model"]),
    ],
)
def test_shells_complete_names(typed: str, expected: list[str]) -> None:
    words = {"COMP_WORDS": f"oaxe {typed}", "COMP_CWORD": str(len(typed.split()))}
    asked = CliRunner().invoke(
        app.app, [], prog_name="oaxe", env=words | {"_OAXE_COMPLETE": "complete_bash"}
    )
    assert asked.output.split() == expected


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import oaxe.commands.app", ["torch", "numpy", "scipy", "matplotlib"]),
        ("import oaxe; oaxe.oaxe_loss", ["scipy", "matplotlib", "typer", "rich", "torch._dynamo"]),
    ],
)
def test_imports_only_what_is_needed(code: str, absent: list[str]) -> None:
    """--help must not wait for torch, nor the loss library for anything of the toolkit."""
    before = "import sys, torch\n" if "torch" not in absent else "import sys\n"
    check = f"{before}was = set(sys.modules)\n{code}\nprint(*set(sys.modules) - was)"
    loaded = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    ).stdout.split()
    assert any(name.startswith("oaxe") for name in loaded)
    assert not set(loaded) & set(absent)


def test_names_and_version_agree_with_the_package() -> None:
    assert oaxe.__version__ == version("oaxe")
    assert all(getattr(oaxe, name).__module__.startswith("oaxe.") for name in oaxe.__all__)
    assert set(oaxe.__all__) <= set(dir(oaxe))
    with pytest.raises(AttributeError, match="no attribute 'oaxe_los'"):
        _ = oaxe.oaxe_los
