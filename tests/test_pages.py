"""A reader who pastes the blocks of a page in their order gets results: here all of them run.

Text is made up, and options of the same commands make models and runs small. A page may use what
another one has made only if it links to that page.
"""

import gzip
import json
import lzma
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from typer.testing import CliRunner

import oaxe
import reproduction.__main__
from oaxe.commands.app import app
from tests.decoding.hub import local_hub
from tests.pipeline.small import make_small
from tests.runs import free_port

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the pages have commands of bash")
ROOT = Path(__file__).parent.parent

# What does not run here, and why.
ELSEWHERE = {
    "pip install": "from the network; tests/test_packaging.py, and CI for every Python",
    "make ": "an environment of its own: CI",
    "git clone": "from the network: UPSTREAM is made up",
    "oaxe data (get|prepare)": "from the network; tests/text/test_datasets.py has a server for it",
    "docker": "needs its daemon",
    "torchrun": "several machines: tests/test_clusters.py, tests/training/test_hosts.py",
    "python -m reproduction (?!.*--no-train)": "minutes to days: tests/reproduction",
}
if find_spec("ctranslate2") is None:
    ELSEWHERE[".*ctranslate2"] = "is not installed"

# The pages from which a page takes what they have made.
NEEDS = {
    "docs/start/translator.md": ["docs/data.md"],
    "docs/distillation.md": ["docs/data.md"],
    "docs/evaluation.md": ["docs/distillation.md"],
    "docs/glat.md": ["docs/data.md"],
    "docs/systems.md": ["docs/data.md"],
    "docs/training.md": ["docs/prepare.md"],
    "docs/translate.md": ["docs/training.md"],
    "docs/export.md": ["docs/training.md"],
    "docs/serving.md": ["docs/training.md"],
    "docs/deployment.md": ["docs/training.md"],
}

# Text that is the reader's own: all files of these endings that a page names and no page makes.
OWN = re.compile(r"(?<![\w/-])(?<!-o )\w+\.(?:en|de|fr|txt)(?:\.[gx]z)?\b")
UPSTREAM = [
    f"multi30k/data/task1/raw/{split}.{language}.gz"
    for split in ("train", "val", "test_2016_flickr") for language in ("en", "de")
]  # fmt: skip
CLONE = ["examples", "reproduction/results"]
WORDS = {
    "en": "a the dog cat man woman child boat house street runs sees rides finds reads red",
    "de": "ein das hund katze mann frau kind boot haus weg rennt sieht fährt findet liest rot",
    "fr": "un le chien chat homme femme enfant bateau maison rue court voit va trouve lit rouge",
}

# Options of the commands that make them small.
SETTINGS = {
    "model.size": "tiny", "model.max_length": 40, "train.steps": 2, "train.save_every": 2,
    "data.update_tokens": 200, "data.batch_tokens": 400, "validation.every": 2,
}  # fmt: skip
SMALLER = {
    "train": [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")],
    "prepare": ["--vocab-size", "90"],
    "build": ["--minutes", "0.6"],
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(sh|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


GUIDES = sorted(path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "results")
PAGES = [
    path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *GUIDES] if blocks(path)
]


def write(file: Path) -> None:
    """Made-up sentences; line n of a file is that of the same file in another language, too."""
    name, language, packed = f"{file.name}.".split(".")[:3]
    rng, words = random.Random(name), WORDS.get(language, WORDS["en"]).split()
    numbers = [rng.choices(range(16), k=rng.randint(3, 7)) for _ in range(240)]
    lines = numbers if name == "train" else numbers[:6]
    text = "".join(" ".join(words[i] for i in line) + ".\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    open_file: Any = {"gz": gzip.open, "xz": lzma.open}.get(packed, open)
    with open_file(file, "wt", encoding="utf-8") as opened:
        opened.write(text)


def commands(block: str) -> Iterator[str]:
    for line in block.replace("\\\n", " ").splitlines():
        for command in line.split(" && "):
            if command:
                yield command.removeprefix(".venv/bin/")


def runs_here(command: str) -> bool:
    return not any(re.match(pattern, command) for pattern in ELSEWHERE)


class Terminal:
    """Does what a page says, in the working folder. Another one asks the server in this one."""

    def __init__(self) -> None:
        self.server: list[str] = []
        self.questions: list[list[str]] = []

    def enter(self, command: str) -> None:
        before, pipe, after = command.partition(" | oaxe ")
        words = shlex.split(f"oaxe {after}" if pipe else command, comments=True)
        if "<" in words:
            words, (_, name) = words[:-2], words[-2:]
            before, pipe = f"cat {name}", "<"
        if words[:1] == ["curl"]:
            self.questions.append(words[1:])
            return
        self.leave()
        if words[:2] == ["oaxe", "serve"]:
            self.server = words[1:]
        elif words[:1] == ["oaxe"]:
            typed = subprocess.check_output(before, shell=True, text=True) if pipe else "Hund.\n"
            invoke(app, words[1:], typed)
        elif words[:3] == ["python", "-m", "reproduction"]:
            invoke(reproduction.__main__.app, words[3:])
        elif words[:1] == ["cd"]:
            os.chdir(words[1])
        else:
            subprocess.run(["bash", "-c", command], check=True)

    def leave(self) -> None:
        """Nothing else can be typed while a server runs: now it does, is asked, and ends."""
        assert self.server or not self.questions
        if self.server:
            port = free_port()
            with ThreadPoolExecutor() as other:
                asked = other.submit(ask_and_stop, port, self.questions)
                invoke(app, [*self.server, "--port", port])
            asked.result()
            self.server, self.questions = [], []


def invoke(program: Any, words: list[str], typed: str = "") -> None:
    given = [*words, *SMALLER.get(words[0], [])]
    result = CliRunner().invoke(program, given, input=typed)
    assert result.exit_code == 0, (shlex.join(given), result.exception, result.output)
    for option, name in pairwise(words):
        assert option not in ("-o", "--out") or Path(name).stat().st_size


def ask_and_stop(port: str, questions: list[list[str]]) -> None:
    answer = None
    for _ in range(600):
        with suppress(OSError):
            answer = urlopen(f"http://127.0.0.1:{port}/ready")
            break
        time.sleep(0.1)
    assert answer is not None, "the server did not start within a minute"
    try:
        for url, option, content in questions:
            assert option == "--json"
            address = f"http://{url}".replace(":8000", f":{port}")
            kind = {"Content-Type": "application/json"}
            with urlopen(Request(address, content.encode(), kind)) as found:
                asked = {"details"} & json.loads(content).keys()
                expected = {"translatedText", "model", "milliseconds"} | asked
                assert json.load(found).keys() == expected
    finally:
        answer.close()
        os.kill(os.getpid(), signal.SIGINT)


Reader = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Follows a page in a folder of its own; returns the names of its Python blocks."""
    folders: dict[str, Path] = {}
    found: dict[str, dict[str, Any]] = {}

    def follow(page: str) -> dict[str, Any]:
        if page in found:
            return found[page]
        folder = folders[page] = tmp_path_factory.mktemp(Path(page).stem)
        own = set(OWN.findall(str(blocks(ROOT / page)))) - {Path(name).name for name in UPSTREAM}
        for name in (*UPSTREAM, *own):
            write(folder / name)
        for name in CLONE:
            shutil.copytree(ROOT / name, folder / name)
        for name in NEEDS.get(page, []):
            follow(name)
            shutil.copytree(folders[name], folder, dirs_exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            make_small(patch)
            patch.chdir(folder)
            found[page] = paste(ROOT / page, patch)
        return found[page]

    return follow


def paste(page: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    terminal = Terminal()
    python: dict[str, Any] = {}
    for language, code in blocks(page):
        if language == "sh":
            for command in filter(runs_here, commands(code)):
                terminal.enter(command)
        elif runs_here(code):
            if "# before" in code:  # a line in a trainer of the reader's
                logits, target = torch.randn(2, 5, 9), torch.randint(9, (2, 5))
                python |= {"F": F, "oaxe": oaxe, "logits": logits, "target": target}
            with local_hub(Path("hub"), patch):
                exec(code, python)
    terminal.leave()
    return python


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page: str, reader: Reader) -> None:
    reader(page)


def test_pages_link_to_those_that_come_before() -> None:
    for page, before in NEEDS.items():
        links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
        linked = {((ROOT / page).parent / link).resolve() for link in links if ":" not in link}
        assert linked >= {ROOT / name for name in before}, page


def test_nothing_is_left_out_in_vain() -> None:
    there = [
        command
        for page in PAGES
        for language, code in blocks(ROOT / page)
        for command in ([code] if language == "python" else commands(code))
    ]
    assert sum(map(runs_here, there)) > 80
    for pattern in ELSEWHERE:
        assert any(re.match(pattern, command) for command in there), pattern


def test_the_loss_in_a_trainer(reader: Reader) -> None:
    found = reader("docs/start/losses.md")
    assert found["after_xe"] < 0.1
    assert found["after_oaxe"] > 0.8
    on_logits = oaxe.oaxe_loss(found["layer"](found["hidden"]), found["target"])
    torch.testing.assert_close(found["loss"], on_logits)


def test_voices_are_matched_as_in_the_best_of_all_orders(reader: Reader) -> None:
    found = reader("docs/start/sets.md")
    pairs, voice = found["pairs"].detach(), found["voice"]
    outputs = torch.arange(pairs.shape[1])
    orders = torch.stack([pairs[:, outputs, list(o)].sum(1) for o in permutations(range(4))])
    torch.testing.assert_close(pairs.gather(2, voice.unsqueeze(2)).sum((1, 2)), orders.amin(0))
    logits, spoken = (found[name].detach().transpose(1, 2) for name in ("logits", "spoken"))
    every = F.binary_cross_entropy_with_logits(
        logits.unsqueeze(2).expand(-1, -1, 4, -1), spoken.unsqueeze(1).expand(-1, 4, -1, -1),
        reduction="none",
    )  # fmt: skip
    torch.testing.assert_close(pairs, every.mean(3))


def test_sets(reader: Reader) -> None:
    found = reader("docs/sets.md")
    assert found["right"] > 0.8
    xe: dict[str, Any] = {}
    exec(blocks(ROOT / "docs/sets.md")[0][1].replace("oaxe_loss", "xe_loss"), xe)
    assert xe["right"] < 0.1
    match, cost, there = found["match"], found["cost"], found["there"]
    for ours, costs, real in zip(match, cost, there, strict=True):
        slots, objects = linear_sum_assignment(costs[:, real])
        expected = torch.full_like(ours, -1)
        expected[slots] = torch.from_numpy(objects)
        assert ours.equal(expected)
    assert found["target"][match < 0].eq(found["CLASSES"]).all()
    assert found["loss"].isfinite()
