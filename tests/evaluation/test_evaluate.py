"""`oaxe evaluate` on files: every figure against a computation of its own, every mistake named."""

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.evaluation.gold import Gold, read_gold
from oaxe.evaluation.repetition import collapsed, repeated_percent
from oaxe.evaluation.scores import bleu, bleu_by_length, metrics_for, single_reference_bleu
from oaxe.evaluation.significance import paired_test
from oaxe.evaluation.systems import names_and_paths
from oaxe.evaluation.tables import behind
from oaxe.support.errors import UserError
from oaxe.text import languages

VOCABULARY = "the a dog cat boat runs sleeps over under green red field water and then"
WORDS = VOCABULARY.split()


def sentences(seed: int, count: int, shortest: int = 5, longest: int = 14) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(shortest, longest))) for _ in range(count)]


def near(lines: Sequence[str], seed: int, errors: float = 0.2) -> list[str]:
    """The lines with some words exchanged and some said twice."""
    rng = random.Random(seed)
    found = []
    for line in lines:
        words = [rng.choice(WORDS) if rng.random() < errors else w for w in line.split()]
        found.append(" ".join(w for word in words for w in [word] * rng.choice((1, 1, 1, 2))))
    return found


def gold_of(references: list[list[str]], language: str = "en") -> Gold:
    return Gold(references, None, language, [Path("ref.txt")])


def plain_bleu(output: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Papineni et al. (2002), by counting; for texts where every n-gram order has a match."""
    right, total, own_length, ref_length = [0] * 4, [0] * 4, 0, 0
    for line, refs in zip(output, references, strict=True):
        words = line.split()
        own_length += len(words)
        lengths = [len(ref.split()) for ref in refs]
        ref_length += min(lengths, key=lambda n: (abs(n - len(words)), n))
        for n in range(1, 5):
            grams = ngrams(words, n)
            most: Counter[tuple[str, ...]] = Counter()
            for ref in refs:
                most |= ngrams(ref.split(), n)
            right[n - 1] += (grams & most).total()
            total[n - 1] += grams.total()
    brevity = min(1.0, math.exp(1 - ref_length / own_length))
    return (
        100
        * brevity
        * math.exp(sum(math.log(r / t) for r, t in zip(right, total, strict=True)) / 4)
    )


def ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def plain_chrf(output: Sequence[str], references: Sequence[str]) -> float:
    """Popovic (2015): F2 of the mean precision and the mean recall of n-grams of characters."""
    precision = recall = 0.0
    for n in range(1, 7):
        right = own = wanted = 0
        for line, ref in zip(output, references, strict=True):
            a, b = (ngrams(text.replace(" ", ""), n) for text in (line, ref))
            right, own, wanted = right + (a & b).total(), own + a.total(), wanted + b.total()
        precision, recall = precision + right / own / 6, recall + right / wanted / 6
    return 100 * 5 * precision * recall / (4 * precision + recall)


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    if result.exception:
        raise result.exception
    return result.stdout


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


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


def test_deduplication_of_words(tmp_path: Path) -> None:
    reference = sentences(3, 30)
    output = near(reference, 4)
    hyp, ref = write(tmp_path / "out.txt", output), write(tmp_path / "ref.txt", reference)
    run("--hyp", hyp, "--ref", ref, "--json", tmp_path / "scores.json")
    both = load(tmp_path / "scores.json")["deduplication"]
    once = [
        " ".join(w for before, w in pairwise(["", *line.split()]) if w != before) for line in output
    ]
    refs = [[line] for line in reference]
    assert both["unit"] == "words"
    assert both["is_scored"] is False
    assert both["bleu_without"] == pytest.approx(plain_bleu(output, refs))
    assert both["bleu_with"] == pytest.approx(plain_bleu(once, refs))
    assert both["bleu_with"] > both["bleu_without"] + 1


def test_repetition_by_hand() -> None:
    assert repeated_percent([]) == 0
    assert repeated_percent([[], ["a"]]) == 0
    assert repeated_percent([["a", "a"], ["a", "b"]]) == 25  # not across sentences
    assert repeated_percent([["b", "a", "b", "a"]]) == 0  # neighbours alone
    assert repeated_percent([[7, 7, 7, 8]]) == 50
    # the paper's case study: 4 of 19 words
    line = (
        "Passengers often abuse at baggage baggage charges charges and charges charges , airlines "
        "airlines like to use them ."
    )
    assert repeated_percent([line.split()]) == pytest.approx(100 * 4 / 19)
    assert (
        collapsed(line.split())
        == line.replace("baggage baggage", "baggage")
        .replace("charges charges", "charges")
        .replace("airlines airlines", "airlines")
        .split()
    )


@pytest.mark.parametrize("ragged", [False, True])
def test_several_references(ragged: bool) -> None:
    first = sentences(5, 30)
    others = [near(first, seed, 0.3) for seed in (6, 7)]
    references = [list(refs) for refs in zip(first, *others, strict=True)]
    if ragged:
        references = [refs[: 1 + i % 3] for i, refs in enumerate(references)]
    output, gold = near(first, 8), gold_of(references)
    metrics = metrics_for(gold)
    assert bleu(metrics, output)["score"] == pytest.approx(plain_bleu(output, references))
    number = "var" if ragged else "3"
    assert bleu(metrics, output)["signature"].startswith(f"nrefs:{number}|")
    single = single_reference_bleu(metrics, gold, output)
    expected = [
        plain_bleu(output, [[refs[k % len(refs)]] for refs in references]) for k in range(3)
    ]
    assert single["scores"] == pytest.approx(expected)
    assert single["mean"] == pytest.approx(sum(expected) / 3)
    assert single["mean"] < bleu(metrics, output)["score"] - 1


def test_json_lines_equal_files(tmp_path: Path) -> None:
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


def test_buckets_of_length() -> None:
    reference = sentences(12, 90, 4, 60)
    reference[0], reference[1] = " ".join(WORDS[:10]), " ".join(WORDS[:11])
    output = near(reference, 13)
    found = bleu_by_length(metrics_for(gold_of([[r] for r in reference])),
                           gold_of([[r] for r in reference]), output)  # fmt: skip
    assert [b["label"] for b in found] == [
        "up to 10", "11-20", "21-30", "31-40", "41-50", "over 50",
    ]  # fmt: skip
    edges = [(0, 10), (11, 20), (21, 30), (31, 40), (41, 50), (51, 999)]
    for bucket, (least, most) in zip(found, edges, strict=True):
        inside = [i for i, r in enumerate(reference) if least <= len(r.split()) <= most]
        assert bucket["sentences"] == len(inside) > 0
        expected = plain_bleu([output[i] for i in inside], [[reference[i]] for i in inside])
        assert bucket["bleu"] == pytest.approx(expected)
    short = bleu_by_length(
        metrics_for(gold_of([["a b c d"]])), gold_of([["a b c d"]]), ["a b c d"], [2]
    )
    assert [(b["label"], b["sentences"]) for b in short] == [("up to 2", 0), ("over 2", 1)]
    assert short[0]["bleu"] is None
    assert short[1]["bleu"] == pytest.approx(100)


def test_p_values_against_all_exchanges() -> None:
    """Approximate randomisation samples from the 2^n ways to exchange outputs; these are all."""
    reference = sentences(14, 8)
    a, b = near(reference, 15, 0.35), near(reference, 16, 0.1)
    refs = [[line] for line in reference]
    metrics = metrics_for(gold_of(refs))

    def score(output: Sequence[str]) -> float:
        return float(sacrebleu.corpus_bleu(list(output), [reference]).score)

    seen = abs(score(a) - score(b))
    differences = []
    for swaps in product((False, True), repeat=8):
        pairs = [(y, x) if s else (x, y) for x, y, s in zip(a, b, swaps, strict=True)]
        first, second = zip(*pairs, strict=True)
        differences.append(abs(score(first) - score(second)))
    exact = sum(d > seen + 1e-9 for d in differences) / len(differences)
    assert 0.001 < exact < 0.5
    found = paired_test(metrics, {"a": a, "b": b}, "a", trials=4000)["b"]
    assert found["bleu"]["p"] == pytest.approx(exact, abs=0.03)
    assert found["bleu"]["difference"] == pytest.approx(score(b) - score(a))
    assert "ar:4000|seed:12345" in found["bleu"]["signature"]
    again = paired_test(metrics, {"a": a, "b": b}, "a", trials=4000)["b"]
    assert again == found
    other = paired_test(metrics, {"a": a, "b": b}, "a", test="bs", trials=300)["b"]
    assert "bs:300" in other["chrf"]["signature"]
    assert 0 < other["chrf"]["p"] <= 1


def test_the_same_output_is_no_different() -> None:
    reference = sentences(17, 10)
    output = near(reference, 18)
    metrics = metrics_for(gold_of([[line] for line in reference]))
    found = paired_test(metrics, {"a": output, "b": list(output)}, "a", trials=50)
    assert found["b"]["bleu"]["p"] == 1
    assert found["b"]["bleu"]["difference"] == 0
    assert paired_test(metrics, {"a": output}, "a") == {}
    found = paired_test(metrics, {"a": ["x"] * 10, "b": ["y"] * 10}, "a", trials=50)
    assert (found["b"]["bleu"]["difference"], found["b"]["bleu"]["p"]) == (0, 1)  # both have 0


def test_several_systems(tmp_path: Path) -> None:
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


def test_case(tmp_path: Path) -> None:
    hyp = write(tmp_path / "out.txt", ["A Dog Runs Over There"])
    ref = write(tmp_path / "ref.txt", ["a dog runs over there"])
    run("--hyp", hyp, "--ref", ref, "--json", tmp_path / "a.json")
    run("--hyp", hyp, "--ref", ref, "--lowercase", "--json", tmp_path / "b.json")
    a, b = load(tmp_path / "a.json"), load(tmp_path / "b.json")
    assert a["bleu"]["score"] == 0
    assert b["bleu"]["score"] == pytest.approx(100)
    assert b["bleu_by_length"][0]["bleu"] == pytest.approx(100)
    assert "case:lc" in b["bleu"]["signature"]


@pytest.mark.parametrize(
    ("language", "mecab", "tokenizer", "unit"),
    [
        ("de", False, "13a", "words"),
        ("", False, "13a", "words"),
        ("zh-CN", False, "zh", "characters"),
        ("zh_TW", False, "zh", "characters"),
        ("ja", False, "char", "characters"),
        ("JA", True, "ja-mecab", "characters"),
        ("ko", False, "char", "words"),
        ("th", False, "char", "characters"),
        ("jpn", True, "ja-mecab", "characters"),
        ("x-ja", False, "13a", "words"),
    ],
)
def test_languages(
    language: str, mecab: bool, tokenizer: str, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(languages, "find_spec", lambda name: mecab or None)
    assert languages.bleu_tokenizer(language) == tokenizer
    assert languages.unit(language) == unit
    line = "a bb  c"
    found = languages.words(line, language)
    assert found == (["a", "bb", "c"] if unit == "words" else ["a", "b", "b", "c"])
    assert languages.joined(found, language) == ("a bb c" if unit == "words" else "abbc")


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


@pytest.mark.parametrize(("language", "one"), [("de", "word"), ("zh-CN", "character")])
def test_perplexity_is_headed_by_what_it_counts(language: str, one: str) -> None:
    fluency = {"repetition": 0.0, "fluency": {"perplexity": 12.34}}
    report = {"unit": languages.unit(language), "systems": {"a": fluency}, "gold": fluency}
    table = behind(report)
    assert table.head[-1] == f"perplexity a {one}"
    assert [row[-1] for row in table.rows] == ["12.3", "12.3"]


def test_names() -> None:
    assert names_and_paths(["a=x/y", "runs/b", "x=y=z"]) == {"a": "x/y", "b": "runs/b", "x": "y=z"}
    assert names_and_paths(["runs/lr=3"]) == {"lr=3": "runs/lr=3"}
    with pytest.raises(UserError, match="two systems are called b: runs/b and other/b"):
        names_and_paths(["runs/b", "other/b"])
    for nothing in ("=x", "x=", ""):
        with pytest.raises(UserError, match="NAME=path"):
            names_and_paths([nothing])


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
        ("--hyp {0}/h --hyp {0}/h --ref {0}/r", "two systems are called h"),
        ("--hyp a={0}/h --hyp a={0}/r --ref {0}/r", "two systems are called a"),
        ("--hyp {0}/h --ref {0}/r --baseline b", "--baseline b is none of the systems: h"),
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
        ("--hyp {0}/h --ref {0}/r --lengths 20,10", "--lengths must be numbers that grow"),
        ("--hyp {0}/h --ref {0}/r --lengths ten", "got 'ten'"),
        ("--hyp {0}/h --ref {0}/r --lang german", "'german' is no code .* such as de"),
        ("--hyp {0}/h --ref {0}/r --lang zh-", "'zh-' is no code"),
        ("--hyp {0}/h --ref {0}/r --json {0}/h", "/h is read, and would be overwritten"),
        ("--hyp A={0}/h --ref {0}/r --json {0}/r", "/r is read, and would be overwritten"),
        ("--hyp {0}/h --ref {0}/r --out {0}/h/x", r"cannot make the folder .*/h/x: Not a dir"),
    ],
)  # fmt: skip
def test_mistakes(arguments: str, message: str, tmp_path: Path) -> None:
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
    assert notes[1].startswith("ref looks tokenized, 100 of its lines")


def test_blank_lines(tmp_path: Path) -> None:
    """Of references they do not count where there is another, and a note says where they are."""
    texts = [sentences(30, 10), sentences(31, 10), sentences(32, 10)]
    texts[0][3] = texts[0][8] = texts[1][4] = texts[1][8] = ""
    texts[2][2] = texts[2][5] = texts[2][8] = " "
    a, b, hyp = (write(tmp_path / n, lines) for n, lines in zip("abh", texts, strict=True))
    entries = [json.dumps({"src": "x", "refs": of}) for of in zip(*texts[:2], strict=True)]
    multi = write(tmp_path / "multi.jsonl", entries)
    expected = [[t for t in of if t] or [""] for of in zip(*texts[:2], strict=True)]
    assert read_gold(references=[a, b]).references == expected
    assert read_gold(multiref=multi).references == expected
    shown = run("--hyp", hyp, "--ref", a, "--ref", b, "--json", tmp_path / "s.json")
    found = load(tmp_path / "s.json")
    assert found["gold"]["references"] == [1, 2]
    assert found["notes"] == [
        f"2 of 10 lines of {a} are blank",
        f"2 of 10 lines of {b} are blank",
        f"2 of 10 lines of {hyp} are blank where the reference is not",
    ]
    assert all(note in shown for note in found["notes"])


@pytest.mark.parametrize(("language", "noted"), [("", True), ("de", True), ("ja", False)])
def test_text_without_spaces_in_a_language_that_has_them(
    language: str, noted: bool, tmp_path: Path
) -> None:
    ref = write(tmp_path / "ref.txt", ["今日は天気がいい。", "Tom は学校に行った。"])
    lang = ["--lang", language] if language else []
    run("--hyp", ref, "--ref", ref, *lang, "--json", tmp_path / "s.json")
    found = load(tmp_path / "s.json")
    assert any("give --lang ja, zh or th" in note for note in found["notes"]) == noted
    assert (found["bleu"]["score"] < 100) == noted
