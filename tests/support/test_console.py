"""Lines are wrapped at a terminal, and stay whole in a file."""

import io
import subprocess
import sys

import pytest
from rich.table import Table

from oaxe.support.console import new_console

LINE = "the finished model is in " + "a folder with a long name, " * 9 + "and a name"


def printed(*things: object) -> list[str]:
    file = io.StringIO()
    console = new_console(file)
    for thing in things:
        console.print(thing)
    return file.getvalue().splitlines()


def test_a_line_in_a_file_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed(LINE, "next") == [LINE, "next"]
    monkeypatch.setenv("COLUMNS", "50")
    wrapped = printed(LINE)
    assert max(map(len, wrapped)) <= 50 < len(LINE)
    assert " ".join(map(str.strip, wrapped)) == LINE


def test_brackets_are_no_markup() -> None:
    """Nor is anything in colour but what has a style."""
    line = 'pip install "oaxe[cpu]" in runs/[bold]'
    assert printed(line) == [line]
    file = io.StringIO()
    console = new_console(file)
    console._force_terminal = True
    console.print("3 updates in /tmp/run")
    assert file.getvalue() == "3 updates in /tmp/run\n"


def test_a_terminal_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then assumes a terminal
    assert len(printed(LINE)) > 1


def test_a_table_in_a_file_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("name", "what it is")
    table.add_row("long", LINE)
    lines = printed(table)
    assert len(lines) > 5  # the row is wrapped
    assert len({len(line) for line in lines}) == 1


def test_work_goes_on_when_the_reader_leaves() -> None:
    """As with `| head -1`: it is no failure."""
    code = """
import sys
from oaxe.support.console import new_console
console = new_console()
for number in range(5000):
    console.print(f"line {number}")
print("done", file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line 0\n"
        process.stdout.close()
        assert process.stderr.read() == b"done\n"
    assert process.returncode == 0
