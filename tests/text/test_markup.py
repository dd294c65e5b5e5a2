"""The text of HTML can be replaced; everything else stays."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oaxe.text.markup import Html


@pytest.mark.parametrize(
    ("html", "texts"),
    [
        ("<p>a <b>b</b></p> c", ["a ", "b", " c"]),
        ("plain &amp; &eacute;", ["plain & é"]),
        ("<!-- <p>no</p> -->yes<!---->", ["yes"]),
        ("<SCRIPT>1 < 2</script >a<style>b</style><pre>c</pre>d<code>e</code>", ["a", "d"]),
        ("<a title='>' href=\">\">x</a>", ["x"]),
        ("1 < 2 <3 > <- <br/>x", ["1 < 2 <3 > <- ", "x"]),
        ("<!DOCTYPE html><?xml a?>x", ["x"]),
        ("x<p", ["x<p"]),
        ("x<p title='", ["x<p title='"]),
        ("x<!-- y", ["x<!-- y"]),
        ("x<script>y", ["x<script>y"]),
        ("<prefix>a</prefix>", ["a"]),
        ("", []),
    ],
)
def test_texts(html: str, texts: list[str]) -> None:
    page = Html(html)
    assert page.texts == texts
    marked = page.filled([f"<{n}" for n in range(len(texts))])
    assert Html(marked).texts == [f"<{n}" for n in range(len(texts))]


@given(st.text(alphabet=st.sampled_from("<>/!-'\"ab =?")))
def test_tags_stay(html: str) -> None:
    page = Html(html)
    filled = page.filled(page.texts)  # without entities, only < and > are written otherwise
    for is_text, piece in page._pieces:
        assert is_text or piece in filled
    assert "".join(piece for _, piece in page._pieces) == html


@pytest.mark.parametrize(
    "text", ["<", "<a ", "<!--", "<a '", "<script>", "<a>", "<!---->", "</", "<pre></pre>"]
)
def test_takes_no_longer_than_reading(text: str) -> None:
    start = time.perf_counter()
    Html(text * 50_000)  # a quadratic pattern would take minutes
    assert time.perf_counter() - start < 10
