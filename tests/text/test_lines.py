import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oaxe.support.errors import UserError
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


BYTES = st.lists(
    st.text().map(str.encode)
    | st.binary(max_size=4)
    | st.sampled_from([b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", "\u2028\x85\x0b".encode()])
).map(b"".join)
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
}


def lines_at_once(content: bytes) -> list[str] | None:
    """What is expected; None: an error."""
    found = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    found = found if found[-1] or content[-1:] == b"\r" else found[:-1]
    found[:1] = [line.removeprefix(b"\xef\xbb\xbf") for line in found[:1]]
    if not found or (len(found) == 1 and b"\r" in found[0]):
        return None
    try:
        return [line.decode() for line in found]
    except UnicodeDecodeError:
        return None


def lines_of(path: Path) -> list[str] | None:
    try:
        return lines.read_lines(path)
    except UserError:
        return None


@given(content=BYTES, ending=st.sampled_from([*COMPRESS]), block=st.integers(1, 9))
def test_any_bytes(
    content: bytes, ending: str, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However they are cut into blocks."""
    path = tmp_path_factory.getbasetemp() / f"any{ending}"
    path.write_bytes(COMPRESS[ending](content))
    with mock.patch.object(lines, "BLOCK", block):
        assert lines_of(path) == lines_at_once(content)


@given(data=st.data(), content=BYTES, ending=st.sampled_from([".gz", ".xz"]))
def test_any_damage_of_a_compressed_file(
    data: st.DataObject, content: bytes, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = COMPRESS[ending](content)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
    path = tmp_path_factory.getbasetemp() / f"damaged{ending}"
    for damaged in (whole[:place], whole[:place] + flipped + whole[place + 1 :]):
        path.write_bytes(damaged)
        assert lines_of(path) in (None, lines_at_once(content))
