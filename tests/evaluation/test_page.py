"""The page of a report."""

import os
import threading
from pathlib import Path

from tests.evaluation.samples import run, write


def test_page_marks_words_and_escapes_text(tmp_path: Path) -> None:
    ref = write(tmp_path / "ref.txt", ["a <b>big</b> dog runs", "two men"])
    hyp = write(tmp_path / "out.txt", ["a <b>big</b> dog dog", ""])
    run("--hyp", f"<i>={hyp}", "--ref", ref, "--out", tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Evaluation of &lt;i&gt;" in page
    assert 'a &lt;b&gt;big&lt;/b&gt; dog <span class="repeated">dog</span>' in page
    assert '<span class="missing">runs</span>' in page
    assert "(nothing)" in page
    assert page.count("<svg ") == 1
    assert page.count('<div class="scroll" role="region" aria-label=') == page.count("<caption>")
    assert page.count("<caption>") == 3
    assert "prefers-color-scheme: dark" in page
    for absent in ("<b>", "<i>", "<script", "@import"):
        assert absent not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_characters_are_shown_without_spaces(tmp_path: Path) -> None:
    hyp, ref = write(tmp_path / "out.txt", ["小犬犬"]), write(tmp_path / "ref.txt", ["小さ犬"])
    run("--hyp", hyp, "--ref", ref, "--lang", "ja", "--out", tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '>小犬<span class="repeated">犬</span></dd>' in page


def test_pipe_as_input(tmp_path: Path) -> None:
    ref, pipe = write(tmp_path / "ref.txt", ["a dog runs"]), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a dog runs\n",))
    writer.start()
    run("--hyp", pipe, "--ref", ref, "--out", tmp_path)
    writer.join()
    assert f"{pipe} (a pipe)" in (tmp_path / "report.html").read_text(encoding="utf-8")
