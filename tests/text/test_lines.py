import os
from pathlib import Path

import pytest

from oaxe.text import lines
from oaxe.text.lines import Lines, read_parallel


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("one\u2028two\r\nthree\x0bfour\n\nlast".encode())
    (chunk,) = read_parallel(tmp_path / "a", tmp_path / "a")
    assert chunk.sources == ["one\u2028two", "three\x0bfour", "", "last"]


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    """A byte order mark is no text, in front; ends of lines have two bytes."""
    (tmp_path / "a").write_bytes("\ufeffone\r\n\ufefftwo\r\n".encode())
    assert lines.read_lines(tmp_path / "a") == ["one", "\ufefftwo"]


def test_where_only_sockets_can_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: a file never waits, and a pipe is asked no further than what it gave."""

    def not_a_socket(*_: object) -> None:
        raise OSError(10038, "an operation was attempted on something that is not a socket")

    monkeypatch.setattr(lines, "select", not_a_socket)
    (tmp_path / "a").write_text("one\ntwo\n")
    with Lines(tmp_path / "a") as given:
        assert given.comes_within(0)
        assert [given.read(), given.read(), given.read()] == ["one", "two", None]
    ours, theirs = os.pipe()
    os.write(theirs, b"one\ntwo\n")
    with open(ours, "rb") as pipe, Lines(Path("pipe"), pipe) as given:
        assert given.read() == "one"
        assert given.comes_within(0)
        assert given.read() == "two"
        assert not given.comes_within(0)
        os.close(theirs)
        assert given.read() is None
