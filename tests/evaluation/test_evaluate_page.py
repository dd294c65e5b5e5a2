"""Outputs side by side, and the page that shows them."""

from pathlib import Path

import pytest

from oaxe.evaluation.scores import metrics_for
from oaxe.evaluation.side_by_side import examples, missing, repeats
from oaxe.evaluation.systems import System
from tests.evaluation.test_evaluate import gold_of, run, write


def test_side_by_side() -> None:
    said = "Passengers often abuse at baggage baggage charges and charges , airlines like"
    wanted = "Passengers often grumble about baggage charges and other fees, but airlines"
    output, reference = said.split(), wanted.split()
    assert [w for w, again in zip(output, repeats(output), strict=True) if again] == ["baggage"]
    assert missing(output, reference) == ["grumble", "about", "other", "fees", "but"]
    assert repeats([]) == []
    assert missing([], ["a", "!"]) == ["a"]

    def system(name: str, lines: list[str]) -> System:
        return System(name, name, lines, lines, "words", deduplicates=False)

    gold = gold_of([["a green dog"], ["a red cat"], ["the boat"]])
    same = ["a green dog", "the boat", "the boat"]
    other = ["a green dot", "a red cat", "the boat"]
    found = examples(metrics_for(gold), gold, [system("x", same), system("y", other)], 2)
    assert [example["line"] for example in found] == [2, 1]  # the third is equal in both
    assert found[0]["outputs"] == {"x": "the boat", "y": "a red cat"}
    assert found[0]["chrf"]["y"] == pytest.approx(100)
    alone = examples(metrics_for(gold), gold, [system("x", same)], 1)
    assert [example["line"] for example in alone] == [2]  # its worst


def test_page(tmp_path: Path) -> None:
    """What is said of the words is said in the page, and nothing in a text becomes HTML."""
    ref = write(tmp_path / "ref.txt", ["a <b>big</b> dog runs", "two men"])
    hyp = write(tmp_path / "out.txt", ["a <b>big</b> dog dog", ""])
    run("--hyp", f"<i>={hyp}", "--ref", ref, "--out", tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Evaluation of &lt;i&gt;" in page
    assert 'a &lt;b&gt;big&lt;/b&gt; dog <span class="repeated">dog</span>' in page
    assert '<span class="missing">runs</span>' in page
    assert "(nothing)" in page
    assert page.count("<svg ") == 1
    assert "<b>" not in page
    assert "<i>" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
