"""Files that are complete or absent, and paths that are no files."""

import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from oaxe.support import files
from oaxe.support.errors import UserError
from oaxe.support.files import (
    appears_whole,
    check_output,
    sync,
    write_json,
    write_synced,
    write_together,
    write_whole,
)


def test_windows_opens_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And syncs only what can be written."""
    monkeypatch.setattr(files, "WINDOWS", True)
    opened, really = [], os.open

    def noting(path: Path, flags: int, *how: int) -> int:
        opened.append((path, flags))
        return really(path, flags, *how)

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "open", noting)
    sync(tmp_path)
    sync(tmp_path / "file")
    assert opened == [(tmp_path / "file", os.O_RDWR)]


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


def test_two_that_write_the_same_file(tmp_path: Path) -> None:
    """Each has a part of its own, and the last one to end stays."""
    path = tmp_path / "file"
    with appears_whole(path, alone=False) as first:
        with appears_whole(path, alone=False) as second:
            first.write(b"first")
            second.write(b"second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_what_was_interrupted(tmp_path: Path) -> None:
    path, own = tmp_path / "file", tmp_path / "file.part"
    own.write_text("of the user")

    def interrupted() -> None:
        with appears_whole(path, alone=False) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    path.write_text("first")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "first"
    assert own.read_text() == "of the user"
    assert {found.name for found in tmp_path.iterdir()} == {"file", "file.part"}


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(path, "text")
    assert caught.value.filename == str(path)


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


def test_json_is_readable_and_ends_with_a_line(tmp_path: Path) -> None:
    value = {"name": "Äpfel", "numbers": [1, 2.5, None]}
    write_json(tmp_path / "file", value)
    text = (tmp_path / "file").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "Äpfel" in text
    assert text.endswith("}\n")


def test_files_and_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    write_synced(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"
    sync(tmp_path / "file")
    sync(tmp_path)
    assert synced == [(tmp_path / "file").stat().st_ino] * 2 + [tmp_path.stat().st_ino]


def test_unusable_outputs_are_refused(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.touch()
    check_output(None)
    check_output(tmp_path / "new", given, None, tmp_path / "absent")
    for path, message in {
        tmp_path: "it is a folder; give a file",
        tmp_path / "no/new": "there is no folder",
        tmp_path / "." / "given": "is read, and would be overwritten",
    }.items():
        with pytest.raises(UserError, match=message):
            check_output(path, given)


def test_files_that_change_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full at the last leaves all old ones; the error names a file."""
    paths = [tmp_path / name for name in "abc"]
    write_together(dict.fromkeys(paths, "old"))
    written, calls = write_synced, itertools.count(1)

    def full_at_last(path: Path, data: bytes) -> None:
        if next(calls) == 3:
            path = Path("/dev/full")
        written(path, data)

    monkeypatch.setattr("oaxe.support.files.write_synced", full_at_last)
    with pytest.raises(OSError, match="No space left") as error:
        write_together(dict.fromkeys(paths, "new"))
    assert error.value.filename == "/dev/full"
    assert [path.read_text() for path in paths] == ["old"] * 3
    assert sorted(tmp_path.iterdir()) == paths
    monkeypatch.undo()
    write_together(dict.fromkeys(paths, "new"))
    assert [path.read_text() for path in paths] == ["new"] * 3
