"""The tables of a report."""

import pytest

from oaxe.evaluation.tables import behind
from oaxe.text import languages


@pytest.mark.parametrize(("language", "one"), [("de", "word"), ("zh-CN", "character")])
def test_head_names_the_unit_of_perplexity(language: str, one: str) -> None:
    fluency = {"repetition": 0.0, "fluency": {"perplexity": 12.34}}
    report = {"unit": languages.unit(language), "systems": {"a": fluency}, "gold": fluency}
    table = behind(report)
    assert table.head[-1] == f"perplexity a {one}"
    assert [row[-1] for row in table.rows] == ["12.3", "12.3"]
