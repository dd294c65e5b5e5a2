"""Commands in the documents have the options that they name; links lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from typer.testing import CliRunner

import benchmarks.__main__
import oaxe
import reproduction.__main__
from oaxe.commands.app import app
from oaxe.commands.config import shipped
from oaxe.systems import built_in
from oaxe.training.settings import load_settings
from tests.test_pages import blocks

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
    + [*(ROOT / "docs").rglob("*.md")]
)
APPS = {
    "oaxe": app,
    "benchmarks": benchmarks.__main__.app,
    "reproduction": reproduction.__main__.app,
}
SYSTEMS = "|".join(built_in())
WITHOUT_DATA = rf"(data list|config (?:list|systems|show(?: --system (?:{SYSTEMS}))?))\b"


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of every call of our programs in the shell blocks of a page."""
    for language, block in blocks(path):
        for line in block.replace("\\\n", " ").splitlines() if language == "sh" else []:
            words = shlex.split(line, comments=True)
            for part in " ".join(shlex.quote(w) for w in words).split(" '|' "):
                call = shlex.split(part)
                if call[:1] == ["oaxe"]:
                    yield "oaxe", call[1:]
                elif "-m" in call and (name := call[call.index("-m") + 1]) in APPS:
                    yield name, call[call.index("-m") + 2 :]


COMMANDS = [(path, *call) for path in PAGES for call in commands(path)]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 40
    assert {name for _, name, _ in COMMANDS} == set(APPS)
    assert {path.name for path, *_ in COMMANDS} >= {"README.md", "training.md", "distillation.md"}


@pytest.mark.parametrize(
    ("path", "name", "arguments"), COMMANDS, ids=[f"{c[0].stem}-{c[1]}-{c[2][0]}" for c in COMMANDS]
)
def test_commands_have_the_options_that_pages_name(
    path: Path, name: str, arguments: list[str]
) -> None:
    """Files need not be there, but commands, options and settings must."""
    command: Any = typer.main.get_command(APPS[name])
    rest, words = list(arguments), [name]
    while hasattr(command, "commands"):
        words.append(rest.pop(0))
        command = command.commands[words[-1]]
    context = command.context_class(command, info_name=name)
    given, _, _ = command.make_parser(context).parse_args(rest)
    assert {p.name for p in command.params if p.required} <= given.keys()
    configuration = str(given.get("configuration"))
    if words == ["oaxe", "train"] and not configuration.endswith(".yaml"):
        load_settings(shipped()[configuration], given.get("changes") or [])


def test_commands_that_need_no_data_run() -> None:
    shown = set()
    for path in PAGES:
        shown |= set(re.findall(f"oaxe {WITHOUT_DATA}", path.read_text(encoding="utf-8")))
    assert {"data list", "config list", "config show", "config show --system ctc"} <= shown
    for arguments in sorted(shown):
        result = CliRunner().invoke(app, arguments.split())
        assert result.exit_code == 0, (arguments, result.output)
        assert result.output.count("\n") > 5


def test_the_guide_to_systems_shows_the_code_that_is_there() -> None:
    page = (ROOT / "docs/glat.md").read_text(encoding="utf-8")
    files = (ROOT / "src/oaxe/systems" / name for name in ("glat.py", "__init__.py"))
    source = "".join("".join(file.read_text(encoding="utf-8").split()) for file in files)
    shown = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(shown) > 6
    for part in shown:  # indented otherwise, so that lines break elsewhere
        assert "".join(part.split()) in source, part


def anchor(title: str) -> str:
    """What a heading is called in links, on the usual pages."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_links_lead_somewhere() -> None:
    text = {path: path.read_text(encoding="utf-8") for path in PAGES}
    headings = {
        path: {anchor(title) for title in re.findall(r"^#+ (.*)$", content, re.MULTILINE)}
        for path, content in text.items()
    }
    found = 0
    for path, content in text.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", content):
            if "://" in link:
                continue
            where, _, heading = link.partition("#")
            target = (path.parent / where).resolve() if where else path
            assert target.exists(), f"{path.name}: {link}"
            assert not heading or heading in headings[target], f"{path.name}: {link}"
            found += 1
    assert found > 80


def test_what_the_page_warns_of() -> None:
    logits = torch.zeros(1, 4, 5)
    logits[0, 3, 2] = 9.0  # the last slot knows it
    ignored, filled = (torch.tensor([[2, rest, rest, rest]]) for rest in (-100, 0))
    assert oaxe.oaxe_loss(logits, ignored) > 1  # only the first slot takes part
    by_slot = oaxe.oaxe_loss(logits, filled, reduction="none")[0]
    assert by_slot[3] < 0.01
    assert oaxe.oaxe_loss(torch.zeros(1, 4, 50), filled, truncation=0.15) == 0
