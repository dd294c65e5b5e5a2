"""Code and commands in the documents run as far as they can without data; links lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import typer.main
from scipy.optimize import linear_sum_assignment
from typer.testing import CliRunner

import benchmarks.__main__
import oaxe
import reproduction.__main__
from oaxe.commands.app import app
from oaxe.commands.config import shipped
from oaxe.decoding.exported import export
from oaxe.systems import built_in
from oaxe.text.subwords import train_subwords
from oaxe.training.settings import load_settings
from tests.decoding.hub import local_hub
from tests.decoding.samples import SENTENCES, translator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/sets.md"
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


def blocks(path: Path, language: str) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of every call of our programs in the shell blocks of a page."""
    for block in blocks(path, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
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


def test_examples_are_prepared_from_files_that_a_page_says_how_to_get() -> None:
    (copied,) = re.findall(r"/\{(.*)\}\.\{(.*)\}(\.gz) \.", (ROOT / "docs/data.md").read_text())
    splits, languages = (part.split(",") for part in copied[:2])
    there = {f"{split}.{language}{copied[2]}" for split in splits for language in languages}
    prepared = [
        (path.name, {word for word in words if word.endswith((".gz", ".xz", ".en", ".de"))})
        for path, _, words in COMMANDS
        if words[:2] == ["prepare", "data/multi30k"]
    ]
    assert prepared == [("README.md", there), ("distillation.md", there)]
    assert len(there) == 6


def test_commands_that_need_no_data_run() -> None:
    shown = set()
    for path in PAGES:
        shown |= set(re.findall(f"oaxe {WITHOUT_DATA}", path.read_text(encoding="utf-8")))
    assert {"data list", "config list", "config show", "config show --system ctc"} <= shown
    for arguments in sorted(shown):
        result = CliRunner().invoke(app, arguments.split())
        assert result.exit_code == 0, (arguments, result.output)
        assert result.output.count("\n") > 5


def test_python_of_the_readme_and_the_guides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random logits, a small translator in the folders that are named, and a hub beside."""
    monkeypatch.chdir(tmp_path)
    subwords = train_subwords([s for s in SENTENCES if s.strip()], tmp_path / "s.model", 60)
    small = translator(subwords)
    export(small, "mine-int8", int8=True)
    small.save_pretrained("mine/model")
    found = {path: blocks(path, "python") for path in PAGES if path != PAGE}
    if find_spec("ctranslate2") is None:
        found = {path: [c for c in of if "ctranslate2" not in c] for path, of in found.items()}
    else:
        teacher = translator(subwords, "transformer")
        export(teacher, "teacher-int8", int8=True, format="ctranslate2")
    assert sum(map(len, found.values())) >= 15
    for run in re.findall(r'from_pretrained\("(runs/[\w/-]+/model)"', str(found)):
        small.save_pretrained(run)
    for path, of_page in found.items():
        logits, target = torch.randn(2, 5, 9), torch.randint(9, (2, 5))
        given: dict[str, Any] = {"F": F, "oaxe": oaxe, "logits": logits, "target": target}
        with local_hub(tmp_path / "hub", monkeypatch):
            for code in of_page:  # as a reader would paste them, one after the other
                exec(code, given)
                assert given.get("loss", torch.ones(())).isfinite()
        if path.parts[-2:] == ("start", "losses.md"):
            assert given["after_xe"] < 0.1
            assert given["after_oaxe"] > 0.8


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


def test_sets() -> None:
    found: dict[str, Any] = {}
    first, second = blocks(PAGE, "python")
    exec(first, found)
    assert found["right"] > 0.8
    xe: dict[str, Any] = {}
    exec(first.replace("oaxe_loss", "xe_loss"), xe)
    assert xe["right"] < 0.1
    exec(second, found)
    match, cost, there = found["match"], found["cost"], found["there"]
    for ours, costs, real in zip(match, cost, there, strict=True):
        slots, objects = linear_sum_assignment(costs[:, real])
        expected = torch.full_like(ours, -1)
        expected[slots] = torch.from_numpy(objects)
        assert ours.equal(expected)
    assert found["target"][match < 0].eq(found["CLASSES"]).all()
    assert found["loss"].isfinite()


def test_what_the_page_warns_of() -> None:
    logits = torch.zeros(1, 4, 5)
    logits[0, 3, 2] = 9.0  # the last slot knows it
    ignored, filled = (torch.tensor([[2, rest, rest, rest]]) for rest in (-100, 0))
    assert oaxe.oaxe_loss(logits, ignored) > 1  # only the first slot takes part
    by_slot = oaxe.oaxe_loss(logits, filled, reduction="none")[0]
    assert by_slot[3] < 0.01
    assert oaxe.oaxe_loss(torch.zeros(1, 4, 50), filled, truncation=0.15) == 0
