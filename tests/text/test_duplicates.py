import random
from pathlib import Path

import pytest

from oaxe.text import duplicates
from oaxe.text.duplicates import Duplicates, hashes_of
from oaxe.text.lines import Chunk


def test_repeats_equal_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "BUCKETS", 3)
    rng = random.Random(7)
    pairs = [(str(rng.randrange(20)), str(rng.randrange(20))) for _ in range(1000)]
    finder = Duplicates(tmp_path)
    for start in range(0, 1000, 90):
        sources, targets = map(list, zip(*pairs[start : start + 90], strict=True))
        finder.add(hashes_of(Chunk(start + 1, sources, targets, position=0)))
    expected = [pair in pairs[:i] for i, pair in enumerate(pairs)]
    assert finder.repeats().tolist() == expected
    assert 0 < sum(expected) < 1000
