from pathlib import Path

from oaxe.text import lines
from oaxe.text.lines import read_parallel


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("one\u2028two\r\nthree\x0bfour\n\nlast".encode())
    (chunk,) = read_parallel(tmp_path / "a", tmp_path / "a")
    assert chunk.sources == ["one\u2028two", "three\x0bfour", "", "last"]


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    """A byte order mark is no text, in front; ends of lines have two bytes."""
    (tmp_path / "a").write_bytes("\ufeffone\r\n\ufefftwo\r\n".encode())
    assert lines.read_lines(tmp_path / "a") == ["one", "\ufefftwo"]
