import hashlib
import zlib
from pathlib import Path

import pytest

from oaxe.support.checksums import BLOCK, Checksum, checksum, checksum_of, problem, sha256


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1])
def test_checksums_equal_those_of_zlib_and_hashlib(size: int, tmp_path: Path) -> None:
    data = bytes(i % 251 for i in range(size))
    path = tmp_path / "file"
    path.write_bytes(data)
    expected = Checksum(size, f"{zlib.crc32(data):08x}")
    assert checksum(path) == checksum_of([data]) == checksum_of([data[:7], data[7:]]) == expected
    assert sha256(path) == hashlib.sha256(data).hexdigest()


def test_problems_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    expected = checksum_of([b"good"])
    assert problem(path, expected) == f"{path} is missing"
    path.write_bytes(b"good")
    assert problem(path, expected) == problem(path, expected, content=False) == ""
    path.write_bytes(b"evil")
    assert problem(path, expected) == (
        f"{path} is damaged: 4 bytes with crc32 {zlib.crc32(b'evil'):08x} instead of {expected}"
    )
    assert problem(path, expected, content=False) == ""
    path.write_bytes(b"longer")
    assert "6 bytes" in problem(path, expected, content=False)
