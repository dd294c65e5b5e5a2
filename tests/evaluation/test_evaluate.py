"""`oaxe evaluate` on files: every number of the report, every mistake of a user."""

from itertools import pairwise
from pathlib import Path

import pytest
import sacrebleu

from oaxe.support.errors import UserError
from tests.evaluation.samples import load, near, plain_bleu, plain_chrf, run, sentences, write


def test_one_file_against_one_reference(tmp_path: Path) -> None:
    reference = sentences(1, 40)
    output = near(reference, 2)
    output[7] = ""
    hyp, ref = write(tmp_path / "out.txt", output), write(tmp_path / "ref.txt", reference)
    shown = run("--hyp", hyp, "--ref", ref, "--lang", "de", "--json", tmp_path / "scores.json")
    found = load(tmp_path / "scores.json")
    expected = plain_bleu(output, [[line] for line in reference])
    assert 20 < expected < 90
    assert found["bleu"]["score"] == pytest.approx(expected)
    assert found["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert found["chrf"]["score"] == pytest.approx(plain_chrf(output, reference))
    assert found["chrf"]["signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
    twice = sum(a == b for line in output for a, b in pairwise(line.split()))
    assert found["repetition"] == pytest.approx(100 * twice / sum(len(t.split()) for t in output))
    assert sum(bucket["sentences"] for bucket in found["bleu_by_length"]) == 40
    assert found["significance"] is None
    assert found["single_reference_bleu"] is None
    assert list(found["systems"]) == ["out"]
    assert {key: found[key] for key in found["systems"]["out"]} == found["systems"]["out"]
    assert set(found["inputs"]) == {str(hyp), str(ref)}
    assert found["environment"]["sacrebleu"] == sacrebleu.__version__
    assert f"{expected:.2f}" in shown
    assert found["bleu"]["signature"] in shown.replace("\n", "")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".html"] == []


def test_several_outputs(tmp_path: Path) -> None:
    reference = sentences(19, 60)
    ref = write(tmp_path / "ref.txt", reference)
    good = write(tmp_path / "good.txt", near(reference, 20, 0.1))
    bad = write(tmp_path / "bad.txt", near(reference, 21, 0.5))
    out = tmp_path / "new" / "report"
    shown = run("--hyp", bad, "--hyp", f"Good one={good}", "--ref", ref, "--out", out,
                "--trials", "200", "--examples", "3")  # fmt: skip
    found = load(out / "scores.json")
    assert list(found["systems"]) == ["bad", "Good one"]
    assert "bleu" not in found
    assert found["baseline"] == "bad"
    assert found["systems"]["bad"]["significance"] is None
    test = found["systems"]["Good one"]["significance"]
    assert test["bleu"]["p"] == pytest.approx(1 / 201)
    assert test["bleu"]["difference"] > 10
    assert (out / "Good one.hyp.txt").read_bytes() == good.read_bytes()
    assert sorted(path.name for path in out.iterdir()) == [
        "Good one.hyp.txt", "bad.hyp.txt", "report.html", "scores.json",
    ]  # fmt: skip
    assert len(found["examples"]) == 3
    assert "baseline" in shown
    run("--hyp", bad, "--hyp", f"Good one={good}", "--ref", ref, "--baseline", "Good one",
        "--trials", "200", "--json", tmp_path / "turned.json")  # fmt: skip
    turned = load(tmp_path / "turned.json")["systems"]["bad"]["significance"]
    assert turned["bleu"]["difference"] == pytest.approx(-test["bleu"]["difference"])


def test_lowercase(tmp_path: Path) -> None:
    hyp = write(tmp_path / "out.txt", ["A Dog Runs Over There"])
    ref = write(tmp_path / "ref.txt", ["a dog runs over there"])
    run("--hyp", hyp, "--ref", ref, "--json", tmp_path / "a.json")
    run("--hyp", hyp, "--ref", ref, "--lowercase", "--json", tmp_path / "b.json")
    a, b = load(tmp_path / "a.json"), load(tmp_path / "b.json")
    assert a["bleu"]["score"] == 0
    assert b["bleu"]["score"] == pytest.approx(100)
    assert b["bleu_by_length"][0]["bleu"] == pytest.approx(100)
    assert "case:lc" in b["bleu"]["signature"]


def test_text_without_spaces(tmp_path: Path) -> None:
    hyp = write(tmp_path / "out.txt", ["我们我们去学校校。", "今天天气很好好"])
    ref = write(tmp_path / "ref.txt", ["我们去学校。", "今天天气很好"])
    run("--hyp", hyp, "--ref", ref, "--lang", "zh", "--json", tmp_path / "s.json", "--lengths", "6")
    found = load(tmp_path / "s.json")
    assert "tok:zh" in found["bleu"]["signature"]
    assert found["repetition"] == pytest.approx(100 * 3 / 16)
    assert found["gold"]["repetition"] == pytest.approx(100 * 1 / 12)
    assert found["deduplication"]["unit"] == "characters"
    assert [b["sentences"] for b in found["bleu_by_length"]] == [2, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--hyp {0}/h --ref {0}/r3", r"/h has 2 lines, .*/r3 has 3"),
        ("--hyp {0}/h --ref {0}/r --ref {0}/r3", r"/r3 has 3 lines, .*/r has 2"),
        ("--hyp {0}/h --ref {0}/r --source {0}/r3", r"/r3 has 3 lines, .*/r has 2"),
        ("--hyp {0}/trail --ref {0}/r", r"/trail has 4 lines.* last 2 lines of .*/trail are blank"),
        ("--hyp {0}/h --ref {0}/trail", r"/h has 2 lines.* last 2 lines of .*/trail are blank"),
        ("--hyp {0}/h --ref {0}/mac", r"/mac has only one line, with carriage returns inside"),
        ("--hyp {0}/empty --ref {0}/r", "/empty is empty"),
        ("--hyp {0}/h --ref {0}/empty", "/empty is empty"),
        ("--hyp {0}/latin --ref {0}/r", r"/latin, line 2 is not UTF-8"),
        ("--hyp {0}/none --ref {0}/r", r"cannot read .*/none: No such file"),
        ("--hyp {0}/h --ref {0}/none", r"cannot read .*/none: No such file"),
        ("--hyp {0}/h --hyp {0}/h --ref {0}/r", "two outputs are called h"),
        ("--hyp a={0}/h --hyp a={0}/r --ref {0}/r", "two outputs are called a"),
        ("--hyp {0}/h --ref {0}/r --baseline b", "--baseline b is not among the outputs: h"),
        ("--ref {0}/r", "nothing to evaluate"),
        ("--hyp {0}/h", "one of --ref, --multiref, --data; got none"),
        ("--hyp {0}/h --ref {0}/r --multiref {0}/r", "got --ref and --multiref"),
        ("--hyp {0}/h --multiref {0}/r", r"/r, line 1 must be \{\"src\""),
        ("--hyp {0}/h --multiref {0}/norefs", r"/norefs, line 2 must be"),
        ("--hyp {0}/h --multiref {0}/norefs --source {0}/r", "--source goes with --ref"),
        ("--hyp {0}/h --data {0}", "is not finished: it has no manifest.json"),
        ("--hyp {0}/h --data {0} --split train", "--split must be valid or test, got train"),
        ("--model {0}/h --ref {0}/r", "--model needs text to translate"),
        ("--model {0}/no --ref {0}/r --source {0}/r", "/no"),
        ("--hyp {0}/h --ref {0}/r --lengths 20,10", "--lengths must be increasing numbers"),
        ("--hyp {0}/h --ref {0}/r --lengths ten", "got 'ten'"),
        ("--hyp {0}/h --ref {0}/r --lang german", "'german' is no code .* such as de"),
        ("--hyp {0}/h --ref {0}/r --lang zh-", "'zh-' is no code"),
        ("--hyp {0}/h --ref {0}/r --json {0}/h", "/h is read, and would be overwritten"),
        ("--hyp A={0}/h --ref {0}/r --json {0}/r", "/r is read, and would be overwritten"),
        ("--hyp {0}/h --ref {0}/r --out {0}/h/x", r"cannot make the folder .*/h/x: Not a dir"),
    ],
)  # fmt: skip
def test_rejects_wrong_arguments(arguments: str, message: str, tmp_path: Path) -> None:
    for name, count in (("h", 2), ("r", 2), ("r3", 3), ("empty", 0)):
        write(tmp_path / name, ["a b c d e"] * count)
    write(tmp_path / "trail", ["a b c d e"] * 2 + ["", " "])
    (tmp_path / "mac").write_bytes(b"a b\rc d\r")
    (tmp_path / "latin").write_bytes("a\nschön\n".encode("latin1"))
    write(tmp_path / "norefs", ['{"src": "a", "refs": ["b"]}', '{"src": "a", "refs": []}'])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=message):
        run(*arguments.format(tmp_path).split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_notes(tmp_path: Path) -> None:
    ref = write(tmp_path / "ref.txt", ["the dog runs ."] * 100)
    run("--hyp", ref, "--ref", ref, "--lang", "ko", "--json", tmp_path / "s.json")
    notes = load(tmp_path / "s.json")["notes"]
    assert notes[0] == "BLEU is of characters"
    assert notes[1].startswith("ref looks tokenized: 100 of its lines")


@pytest.mark.parametrize(("language", "noted"), [("", True), ("de", True), ("ja", False)])
def test_note_on_text_without_spaces(language: str, noted: bool, tmp_path: Path) -> None:
    ref = write(tmp_path / "ref.txt", ["今日は天気がいい。", "Tom は学校に行った。"])
    lang = ["--lang", language] if language else []
    run("--hyp", ref, "--ref", ref, *lang, "--json", tmp_path / "s.json")
    found = load(tmp_path / "s.json")
    assert any("give --lang ja, zh or th" in note for note in found["notes"]) == noted
    assert (found["bleu"]["score"] < 100) == noted
