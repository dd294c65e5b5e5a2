"""Which sentences are shown, and what is marked in them."""

import pytest

from oaxe.evaluation.examples import examples, missing
from oaxe.evaluation.outputs import Output
from tests.evaluation.samples import references_of


def output(name: str, lines: list[str]) -> Output:
    return Output(name, name, lines, lines, "words", deduplicates=False)


def test_missing_words() -> None:
    said = "Passengers often abuse at baggage baggage charges and charges , airlines like"
    wanted = "Passengers often grumble about baggage charges and other fees, but airlines"
    assert missing(said.split(), wanted.split()) == ["grumble", "about", "other", "fees", "but"]
    assert missing([], ["a", "!"]) == ["a"]


def test_sentences_that_differ_most() -> None:
    references = references_of([["a green dog"], ["a red cat"], ["the boat"]])
    same = output("x", ["a green dog", "the boat", "the boat"])
    other = output("y", ["a green dot", "a red cat", "the boat"])
    found = examples(references, [same, other], 2)
    assert [example["line"] for example in found] == [2, 1]  # the third is equal in both
    assert found[0]["outputs"] == {"x": "the boat", "y": "a red cat"}
    assert found[0]["chrf"]["y"] == pytest.approx(100)
    assert [example["line"] for example in examples(references, [same], 1)] == [2]  # its worst
    assert examples(references, [same], 0) == []
