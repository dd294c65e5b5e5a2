"""Test sets in their formats."""

import json
from pathlib import Path

from oaxe.evaluation.references import read_references
from tests.evaluation.samples import load, near, references_of, run, sentences, write


def test_streams_of_unequal_numbers_of_references() -> None:
    assert references_of([["a"], ["b", "c"]]).streams == [["a", "b"], [None, "c"]]


def test_json_lines_equal_text_files(tmp_path: Path) -> None:
    texts = [sentences(9, 12), near(sentences(9, 12), 10)]
    hyp = write(tmp_path / "out.txt", near(texts[0], 11))
    refs = [write(tmp_path / f"{i}.txt", lines) for i, lines in enumerate(texts)]
    entries = [{"src": "x", "refs": list(of)} for of in zip(*texts, strict=True)]
    multi = write(tmp_path / "multi.jsonl", [json.dumps(entry) for entry in entries])
    run("--hyp", hyp, "--ref", refs[0], "--ref", refs[1], "--json", tmp_path / "a.json")
    run("--hyp", hyp, "--multiref", multi, "--json", tmp_path / "b.json")
    a, b = load(tmp_path / "a.json"), load(tmp_path / "b.json")
    assert a["systems"] == b["systems"]
    assert a["single_reference_bleu"]["mean"] > 0
    assert b["examples"][0]["source"] == "x"


def test_blank_lines(tmp_path: Path) -> None:
    """A blank reference is ignored if there is another one; notes name all blank lines."""
    texts = [sentences(30, 10), sentences(31, 10), sentences(32, 10)]
    texts[0][3] = texts[0][8] = texts[1][4] = texts[1][8] = ""
    texts[2][2] = texts[2][5] = texts[2][8] = " "
    a, b, hyp = (write(tmp_path / n, lines) for n, lines in zip("abh", texts, strict=True))
    entries = [json.dumps({"src": "x", "refs": of}) for of in zip(*texts[:2], strict=True)]
    multi = write(tmp_path / "multi.jsonl", entries)
    expected = [[t for t in of if t] or [""] for of in zip(*texts[:2], strict=True)]
    assert read_references(references=[a, b]).texts == expected
    assert read_references(multiref=multi).texts == expected
    shown = run("--hyp", hyp, "--ref", a, "--ref", b, "--json", tmp_path / "s.json")
    found = load(tmp_path / "s.json")
    assert found["gold"]["references"] == [1, 2]
    assert found["notes"] == [
        f"2 of 10 lines of {a} are blank",
        f"2 of 10 lines of {b} are blank",
        f"2 of 10 lines of {hyp} are blank where the reference is not",
    ]
    assert all(note in shown for note in found["notes"])
