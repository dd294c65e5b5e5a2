"""Repetition, counted by hand."""

import pytest

from oaxe.evaluation.repetition import collapsed, repeated_percent, repeats

CASE_STUDY = (  # of the paper
    "Passengers often abuse at baggage baggage charges charges and charges charges , airlines "
    "airlines like to use them ."
)


def test_repeated_percent() -> None:
    assert repeated_percent([]) == 0
    assert repeated_percent([[], ["a"]]) == 0
    assert repeated_percent([["a", "a"], ["a", "b"]]) == 25  # not across sentences
    assert repeated_percent([["b", "a", "b", "a"]]) == 0  # neighbours only
    assert repeated_percent([[7, 7, 7, 8]]) == 50
    assert repeated_percent([CASE_STUDY.split()]) == pytest.approx(100 * 4 / 19)


def test_repeats_are_marked_and_removed() -> None:
    words = CASE_STUDY.split()
    again = [word for word, repeated in zip(words, repeats(words), strict=True) if repeated]
    assert again == ["baggage", "charges", "charges", "airlines"]
    once = CASE_STUDY
    for word in ("baggage", "charges", "airlines"):
        once = once.replace(f"{word} {word}", word)
    assert collapsed(words) == once.split()
    assert repeats([]) == collapsed([]) == []
