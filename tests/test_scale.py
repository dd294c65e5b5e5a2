"""The table of docs/scale.md is what the program on the same page prints."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs/scale.md").read_text(encoding="utf-8")


def test_the_table_is_printed_by_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    program = re.search(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    table = re.search(r"<!-- printed by the program -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert program
    assert table
    found: dict[str, dict[int, float]] = {}
    exec(program[1], found)
    assert capsys.readouterr().out == table[1]
    # By hand: 16,384 tokens at 936,000 a second, and 244 MB sent twice around a ring of 64.
    assert found["update"][64] == pytest.approx(0.0175043 + 2 * 63 / 64 * 243.6e6 / 25e9, rel=1e-4)
    assert found["second"][1] == 1_110_000
