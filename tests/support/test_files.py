"""Files that are complete or absent, and paths that are no files."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from oaxe.support.files import write_whole


def test_a_kill_leaves_the_old_content_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "old"

    monkeypatch.undo()
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, real = tmp_path / "link", tmp_path / "folder/real"
    link.symlink_to(real)
    write_whole(link, "text")
    assert link.is_symlink()
    assert real.read_text() == "text"


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join(20)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_device_stays_a_device() -> None:
    before = os.stat("/dev/null")
    write_whole(Path("/dev/null"), "text")
    assert os.stat("/dev/null").st_mode == before.st_mode
    assert not os.path.exists("/dev/null.part")
