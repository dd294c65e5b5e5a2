"""Distillation on two machines with a shared folder, one of which is killed."""

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from oaxe.distillation import shards as shards_module
from oaxe.distillation.shards import Shards
from tests.distillation.test_distill import files, run, text
from tests.distillation.test_distill import teacher as teacher  # a fixture
from tests.hosts import hosts as hosts  # a fixture
from tests.hosts import killing_its_host, launch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "train.en"
    path.write_text("".join(f"{line}\n" for line in text(400)))
    return path


def work(out: Path, teacher: Path, source: Path, dies_at: int, both: bool = False) -> None:
    """Ten shards; the host dies before it writes its n-th one, or never.

    With ``both``, none is written before both hosts have one to do.
    """
    write = Shards.write

    def late(self: Shards, *arguments: Any) -> None:
        deadline = time.monotonic() + 30
        while both and len([*self.folder.glob("*.taken")]) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        write(self, *arguments)

    dying = killing_its_host(late, dies_at)
    with mock.patch.object(shards_module, "FEWEST", 40), mock.patch.object(Shards, "write", dying):
        run(out, teacher, source, beam=2)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_host(
    killed: int, hosts: list[str], teacher: Path, source: Path, tmp_path: Path
) -> None:
    """The other one translates what is left, and says that it was left alone; then both again."""
    with mock.patch.object(shards_module, "FEWEST", 40):
        run(tmp_path / "one", teacher, source, beam=2)
    given = tmp_path / "two", teacher, source
    works = [partial(work, *given, int(node == killed), both=True) for node in range(2)]
    codes = launch(hosts, works, tmp_path)
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == 1  # it does not wait for ever
    assert "has lost another rank" in (tmp_path / hosts[1 - killed]).read_text()
    done = [*(tmp_path / "two/shards").glob("[0-9]" * 8)]
    assert len(done) == 9
    assert not (tmp_path / "two/manifest.json").exists()

    assert launch(hosts, [partial(work, *given, 0)] * 2, tmp_path) == [0, 0]
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_hosts_with_other_sources(
    hosts: list[str], teacher: Path, source: Path, tmp_path: Path
) -> None:
    other, out = tmp_path / "other.en", tmp_path / "out"
    other.write_text(source.read_text().replace("dog", "cat"))
    works = [partial(work, out, teacher, path, 0) for path in (source, other)]
    assert launch(hosts, works, tmp_path) == [1, 1]
    texts = [(tmp_path / host).read_text() for host in hosts]
    assert texts[0] == texts[1]
    assert "differs from the first rank ('there')" in texts[0]
    assert "source.crc32: " in texts[0]
    assert not out.exists()
