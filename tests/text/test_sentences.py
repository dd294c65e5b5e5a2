"""Paragraphs are split into sentences and put together again; nothing is lost."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oaxe.text.sentences import NARROW, WIDE, Paragraphs, split_paragraph


@pytest.mark.parametrize(
    "cut",
    [
        "A dog.| A cat!| A mouse?| Yes",
        'He said "No."| She left.| (It rained.)| Then',
        "Wait... what?| Wait…| What?",
        "犬だ。|猫だ！|鼠？|はい",
        "「すごい。」と言った。|「はい。」| 猫だ。",
        "यह कुत्ता है।| वह बिल्ली है।",
        "هل هذا كلب؟| نعم.",
        "Dr. Smith and J. S. Bach came.| They sat.",
        "Es kam z.B. Anna am 3. Mai.| Sie blieb bis 2010.| Dann",
        "It costs 3.50 at example.com now.| OK",
        "Really?!| Yes. no",
        "one|\ntwo.|\r\n\r\n  three",
        "...",
        "(Nr. 5) „Hr. Meier“ kam.| „Ja.“ Er",
    ],
)
def test_sentences(cut: str) -> None:
    expected = [sentence.strip() for sentence in cut.split("|")]
    assert split_paragraph(cut.replace("|", "")).sentences == expected


@pytest.mark.parametrize("text", ["", " \n\t ", "\u2028"])
def test_blank(text: str) -> None:
    assert split_paragraph(text).sentences == []


@given(st.text(alphabet=st.sampled_from('aB1ß犬 .!?。！」)"\n\r\t,…\u2028\u3000\x1c\0\U0001f600')))
def test_nothing_is_lost(text: str) -> None:
    part = split_paragraph(text)
    assert len(part.gaps) == len(part.sentences) + 1
    woven = "".join(g + s for g, s in zip(part.gaps, [*part.sentences, ""], strict=True))
    assert woven == text
    assert all(sentence and sentence == sentence.strip() for sentence in part.sentences)
    assert not any(gap.strip() for gap in part.gaps)
    assert part.filled(part.sentences).count("\n") == text.count("\n")


def test_put_together() -> None:
    english = split_paragraph(" A dog.  A cat.\n\n - A mouse. ")
    assert english.filled(["a", "b", "c"], "de") == " a  b\n\n c "
    assert english.filled(["a", "b", "c"], "ja") == " ab\n\n c "
    assert split_paragraph("犬。猫。").filled(["a", "b"], "en") == "a b"
    assert split_paragraph("犬。猫。").filled(["a", "b"], "zh-TW") == "ab"
    assert split_paragraph("\n").filled([]) == "\n"
    both = Paragraphs(["A. b! C", "", "D? E"])
    assert both.sentences == ["A. b!", "C", "D?", "E"]
    assert both.filled(["1", "2", "3", "4"]) == ["1 2", "", "3 4"]


@pytest.mark.parametrize("text", [*NARROW, *WIDE, " ", ". ", ".\n", ". A", '"', ".)", "a.a "])
def test_takes_no_longer_than_reading(text: str) -> None:
    long = text * 50_000  # a quadratic pattern would take minutes
    start = time.perf_counter()
    split_paragraph(long)
    assert time.perf_counter() - start < 10
