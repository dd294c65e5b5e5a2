"""Whatever is no JSON is a ValueError, which readers explain."""

from pathlib import Path

import pytest

from oaxe.support import strict_json

DEEP = "[" * 100_000


def test_reads_values(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ü": [1, null]}', encoding="utf-8")
    assert strict_json.read(tmp_path / "a.json") == {"ü": [1, None]}
    assert strict_json.parse(b"[1.5]") == [1.5]


@pytest.mark.parametrize("content", [b"{", b"\xff", DEEP.encode(), b"9" * 10_000])
def test_everything_else_is_a_value_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        strict_json.read(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"."):
        strict_json.parse(content)


def test_a_file_that_cannot_be_read_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        strict_json.read(tmp_path / "none.json")
