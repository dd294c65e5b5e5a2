"""`oaxe evaluate` with models: NCM, fluency and speed against computations of their own."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.decoding.likelihood import log_likelihoods
from oaxe.decoding.translator import OPTIONS, Translator
from oaxe.evaluation.decodings import decodings
from oaxe.evaluation.fluency import perplexity
from oaxe.evaluation.ncm import ncm
from oaxe.evaluation.repetition import repeated_percent
from oaxe.evaluation.speed import WARM_UP, measure_speed, speed_up
from oaxe.evaluation.systems import weights_checksum
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords, train_subwords
from oaxe.text.symbols import BLANK, BOS, EOS, LENGTH, MASK, PAD, UNK
from tests.model.test_model import micro
from tests.runs import make_data, metrics, settings_of, train_on_ranks, train_small

SOURCES = [
    "a small dog runs over the green field",
    "two men",
    "",
    "the children play in the water near a big red boat while it rains",
    "a woman reads",
    "the dog sleeps in the old boat",
]
REFERENCES = [line or "rain" for line in SOURCES[::-1]]


@pytest.fixture(scope="module")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    path = tmp_path_factory.mktemp("subwords") / "subwords.model"
    return train_subwords([line for line in SOURCES if line], path, 60)


def translator(subwords: Subwords, kind: str, **options: Any) -> Translator:
    if kind == "lm":
        kind, options = "at", {"encoder_layers": 0, **options}
    model = micro(kind, "pre", vocab_size=subwords.vocab_size, **{"max_length": 40, **options})
    return Translator(model, subwords, languages=("en", "en"))


@pytest.fixture(scope="module")
def folder(subwords: Subwords, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of random weights, one of each kind, and a test set."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models")
    for kind in ("nat", "at", "ctc", "lm"):
        translator(subwords, kind).save_pretrained(folder / kind)
    for name, lines in (("source", SOURCES), ("reference", REFERENCES)):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def run(folder: Path, *arguments: str) -> str:
    given = ["--source", f"{folder}/source.txt", "--ref", f"{folder}/reference.txt"]
    result = CliRunner().invoke(app, ["evaluate", *given, *arguments, "--device", "cpu"])
    if result.exception:
        raise result.exception
    return result.stdout


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_models_translate_and_all_is_measured(folder: Path, tmp_path: Path) -> None:
    kinds = ("nat", "at", "ctc")
    shown = run(
        folder,
        *(word for kind in kinds for word in ("--model", f"{kind.upper()}={folder}/{kind}")),
        *("--lm", f"{folder}/lm", "--speed", "--speed-sentences", "3", "--out", str(tmp_path)),
        *("--trials", "20", "--baseline", "AT", "--beam", "2", "--length-candidates", "3"),
    )
    report = load(tmp_path / "scores.json")
    assert list(report["systems"]) == ["NAT", "AT", "CTC"]
    for kind in kinds:
        found = report["systems"][kind.upper()]
        assert found["fluency"]["perplexity"] > 1
        assert found["repetition_of_subwords"] >= 0
        assert found["speed"]["latency_ms"]["sentences"] == 3
        assert found["speed"]["device"] == "cpu"
        assert found["model"]["kind"] == kind
        ours = Translator.from_pretrained(folder / kind)
        assert found["model"]["crc32"] == weights_checksum(ours)
        how: dict[str, Any] = {"nat": {"length_candidates": 3}, "at": {"beam": 2}, "ctc": {}}
        expected = ours.translate(SOURCES, **how[kind])
        assert (tmp_path / f"{kind.upper()}.hyp.txt").read_text().split("\n")[:-1] == expected
    assert report["systems"]["AT"]["speed"]["speed_up"] == {"latency": 1, "throughput": 1}
    assert report["gold"]["fluency"]["perplexity"] > 1
    assert report["systems"]["NAT"]["ncm"] > 0
    assert report["systems"]["AT"]["ncm"] is report["systems"]["CTC"]["ncm"] is None
    assert len(report["notes"]) == 2
    assert "AT has no NCM: it chooses word by word" in shown.replace("\n", " ")
    said = "NAT: 3 lengths, repeats removed; AT: beam 2; CTC: repeats and blanks removed"
    assert f"Decoding: {said}\n" in shown
    assert f"Decoding: {said}</p>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_options_that_change_nothing_are_named(folder: Path) -> None:
    models = [f"--model={folder}/{kind}" for kind in ("nat", "ctc")]
    idle = "changes nothing, since no system here decodes with it"
    assert idle not in run(folder, *models, "--length-penalty", "2").replace("\n", " ")
    shown = run(folder, models[1], "--length-penalty", "2", "--beam", "2").replace("\n", " ")
    assert f"--beam, --length-penalty: {idle}" in shown


def test_how_models_decode_in_words() -> None:
    def model(kind: str, **options: bool | int | float) -> dict[str, Any]:
        return {"model": {"kind": kind, "decoding": {**OPTIONS[kind], **options}}}

    systems = {
        "teacher": model("at", beam=1, max_ratio=3.0),
        "XE": model("nat"),
        "file": {"model": None},
        "OaXE": model("nat"),
        "AXE": model("nat", length_candidates=1, deduplicate=False, remove_blanks=True),
        "refined": model("nat", refine_steps=4),
    }
    assert decodings({"systems": systems}) == [
        "Decoding: teacher: beam 1 (greedy), length ratio up to 3.0; "
        "XE, OaXE: 5 lengths, repeats removed; "
        "AXE: 1 length, repeats kept, blanks removed; refined: 5 lengths, repeats removed, 4 passes"
    ]
    assert decodings({"systems": {"file": {"model": None}}}) == []


def test_a_model_of_another_language_is_named(folder: Path) -> None:
    model = "--model", f"{folder}/at", "--trials", "5", "--lang"
    warning = "warning: at translates into en, references are de"
    assert warning in run(folder, *model, "de").replace("\n", " ")
    assert "warning" not in run(folder, *model, "en")


def test_the_language_of_the_model(folder: Path, subwords: Subwords, tmp_path: Path) -> None:
    """Is that of the references, unless somebody says otherwise."""
    into_japanese = translator(subwords, "nat")
    into_japanese.languages = "en", "ja"
    into_japanese.save_pretrained(tmp_path / "model")
    json_path = str(tmp_path / "s.json")
    for given, expected in (([], "ja"), (["--lang", "en"], "en")):
        run(folder, "--model", str(tmp_path / "model"), "--json", json_path, *given)
        assert load(tmp_path / "s.json")["language"] == expected


def test_files_beside_models(folder: Path, tmp_path: Path) -> None:
    """A file has no NCM and no speed, and that is no error."""
    run(
        folder,
        *("--hyp", f"file={folder}/reference.txt", "--model", f"{folder}/nat", "--speed"),
        *("--speed-sentences", "1", "--trials", "20", "--json", str(tmp_path / "s.json")),
    )
    report = load(tmp_path / "s.json")
    file, model = (report["systems"][name] for name in ("file", "nat"))
    assert file["bleu"]["score"] == pytest.approx(100)
    assert (file["ncm"], file["speed"], file["repetition_of_subwords"]) == (None, None, None)
    assert model["speed"]["speed_up"] is None  # the baseline is the file
    assert report["notes"] == ["file has no speed: it is a file"]


def test_both_decodings_equal_those_of_the_translator(
    folder: Path, subwords: Subwords, tmp_path: Path
) -> None:
    run(folder, "--model", f"{folder}/nat", "--json", str(tmp_path / "s.json"))
    found = load(tmp_path / "s.json")
    ours = Translator.from_pretrained(folder / "nat")
    both = {flag: ours.translate_scored(SOURCES, deduplicate=flag) for flag in (True, False)}
    texts = {flag: [best[0].text for best in both[flag]] for flag in both}
    assert texts[True] != texts[False]
    assert found["deduplication"]["unit"] == "subwords"
    assert found["deduplication"]["is_scored"] is True
    assert found["deduplication"]["bleu_with"] == found["bleu"]["score"]
    shown = {example["line"]: example["outputs"]["nat"] for example in found["examples"]}
    assert [shown[line] for line in range(1, 7)] == texts[True]
    tokens = [best[0].tokens for best in both[False]]
    removed = sum(len(best[0].tokens) for best in both[False]) - sum(
        len(best[0].tokens) for best in both[True]
    )
    assert removed > 0
    assert found["repetition_of_subwords"] == pytest.approx(100 * removed / sum(map(len, tokens)))
    assert found["repetition"] == repeated_percent(text.split() for text in texts[False])
    assert subwords.decode(tokens) == texts[False]


@pytest.mark.parametrize("penalty", [1.0, 2.0])
def test_ncm_from_the_probabilities_of_the_model(
    folder: Path, tmp_path: Path, penalty: float
) -> None:
    ours = Translator.from_pretrained(folder / "nat")
    scored = ours.translate_scored(SOURCES, deduplicate=False, length_penalty=penalty)
    found = [best[0] for best in scored]
    log_p, places = 0.0, 0
    for line, best in zip(SOURCES, found, strict=True):
        if not line:
            continue
        (tokens,) = ours.subwords.encode([line])
        masks = torch.full((1, len(best.tokens)), MASK)
        with torch.no_grad():
            encoded = ours.model.encode(torch.tensor([[*tokens, EOS]]))
            logits = ours.model.logits(ours.model.decode(masks, masks > 0, encoded))[0]
        logits[:, [PAD, BOS, EOS, UNK, MASK, BLANK, LENGTH]] = float("-inf")
        p = logits.softmax(-1)
        assert p.argmax(-1).tolist() == best.tokens
        log_p += sum(math.log(p[n, token]) for n, token in enumerate(best.tokens))
        places += len(best.tokens)
    assert ncm(found, penalty) == pytest.approx(-log_p / places, rel=1e-4)
    assert ncm([]) == 0
    options = "--length-penalty", str(penalty), "--json", str(tmp_path / "scores.json")
    run(folder, "--model", f"NAT={folder}/nat", *options)
    reported = load(tmp_path / "scores.json")["systems"]["NAT"]["ncm"]
    assert reported == pytest.approx(-log_p / places, rel=1e-4)


def next_log_probability(model: Translator, prefix: Sequence[int], token: int) -> float:
    """One word after a prefix, by a pass of its own over the whole prefix."""
    with torch.no_grad():
        encoded = model.model.encode(torch.tensor([[EOS]]))
        inputs = torch.tensor([[BOS, *prefix]])
        logits = model.model.logits(model.model.decode(inputs, inputs > 0, encoded))
    return float(logits[0, -1].double().log_softmax(-1)[token])


def test_perplexity_word_by_word(folder: Path) -> None:
    lm = Translator.from_pretrained(folder / "lm")
    assert lm.kind == "lm"
    texts = ["the dog runs", "a boat", "", "the green green field"]
    expected = []
    for tokens in lm.subwords.encode(texts):
        whole = [*tokens, EOS]
        expected.append(
            sum(next_log_probability(lm, whole[:n], token) for n, token in enumerate(whole))
        )
    for batch_tokens in (1, 20, 1000):
        found = log_likelihoods(lm, lm.subwords.encode(texts), batch_tokens=batch_tokens)
        assert found == pytest.approx(expected, rel=1e-4)
    figures = perplexity(lm, texts, "en")
    assert figures["words"] == 3 + 2 + 0 + 4 + 4  # and four ends
    assert figures["perplexity"] == pytest.approx(math.exp(-sum(expected) / 13), rel=1e-4)
    assert figures["unknown_subwords"] == 0
    assert perplexity(lm, ["ж"], "en")["unknown_subwords"] == 1


def test_perplexity_cuts_what_is_too_long(subwords: Subwords) -> None:
    lm = translator(subwords, "lm", max_length=4)
    (tokens,) = subwords.encode([SOURCES[0]])
    start = subwords.decode([tokens[:4]])[0]
    found, short = (perplexity(lm, [text], "en") for text in (SOURCES[0], start))
    assert found["cut_sentences"] == 1
    assert short["cut_sentences"] == 0
    assert found["words"] == short["words"] == len(start.split()) + 1
    (direct,) = log_likelihoods(lm, [tokens[:4]])
    assert found["perplexity"] == pytest.approx(math.exp(-direct / found["words"]))


def test_speed_by_a_clock_that_we_turn(monkeypatch: pytest.MonkeyPatch, subwords: Subwords) -> None:
    now, calls = [0.0], dict[str, list[int]](slow=[], fast=[])

    class Timed:
        """Takes a known time for each sentence, ten times as long for the one called "late"."""

        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds = name, seconds
            self.model, self.decoding, self.cuda_graphs = real.model, real.decoding, False

        def translate(self, lines: Sequence[str], **_: Any) -> list[str]:
            calls[self.name].append(len(lines))
            now[0] += sum(self.seconds * (10 if line == "late" else 1) for line in lines)
            return list(lines)

    real = translator(subwords, "nat")
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    lines = ["a"] * 18 + ["late", "a"] + [" "]
    timed = {"slow": Timed("slow", 0.03), "fast": Timed("fast", 0.002)}
    found = measure_speed(cast(dict[str, Translator], timed), lines, sentences=50)
    slow, fast = found["slow"], found["fast"]
    assert slow["latency_ms"]["sentences"] == 20  # the blank line is not one
    assert slow["latency_ms"]["median"] == pytest.approx(30)
    assert 30 < slow["latency_ms"]["p95"] < 300
    assert slow["sentences_per_second"] == pytest.approx(20 / (0.03 * 29))
    assert speed_up(fast, slow) == pytest.approx({"latency": 15, "throughput": 15})
    assert calls["slow"] == [1] * (WARM_UP + 20) + [20] * 4  # one to warm up, three that count


def test_a_language_model_of_the_target_side(tmp_path: Path) -> None:
    """Trained like any other, chosen by the probability of held-out text; it does not translate."""
    data = make_data(tmp_path / "digits")
    changes = {"model__kind": "lm", "train__steps": 40, "validation__every": 10}
    result, printed = train_small(settings_of(data, tmp_path / "lm", **changes))
    validations = [r for r in metrics(tmp_path / "lm") if r["what"] == "valid"]
    scores = [record["log_probability"] for record in validations]
    assert len(scores) == 4
    assert scores[-1] > scores[0]
    assert "oaxe evaluate --lm" in printed
    lm = Translator.from_pretrained(tmp_path / "lm" / "model")
    lines = (data / "valid.target.txt").read_text().splitlines()
    tokens = lm.subwords.encode(lines)
    direct = [
        next_log_probability(lm, whole[:n], token)
        for whole in ([*row, EOS] for row in tokens)
        for n, token in enumerate(whole)
    ]
    assert result["log_probability"] == pytest.approx(sum(direct) / len(direct), rel=1e-4)
    assert result["log_probability"] >= max(scores)
    with pytest.raises(UserError, match="a language model, which cannot translate"):
        lm.translate(["1 2"])
    figures = CliRunner().invoke(
        app,
        ["evaluate", "--data", str(data), "--split", "valid", "--device", "cpu", "--lm",
         str(tmp_path / "lm"), "--hyp", str(data / "valid.target.txt"), "--json",
         str(tmp_path / "s.json")],
    )  # fmt: skip
    assert figures.exit_code == 0, figures.output
    found = load(tmp_path / "s.json")
    n_words = sum(len(line.split()) + 1 for line in lines)
    expected = math.exp(-sum(direct) / n_words)
    assert found["gold"]["fluency"]["perplexity"] == pytest.approx(expected, rel=1e-4)
    once = [" ".join(w for b, w in pairwise(["", *line.split()]) if w != b) for line in lines]
    assert once != lines
    assert found["fluency"] == perplexity(lm, once, "bb")  # de-duplicated, as in the paper
    assert found["language"] == "bb"
    assert found["bleu"]["score"] == pytest.approx(100)


def test_two_ranks_score_a_language_model_as_one(tmp_path: Path) -> None:
    data = make_data(tmp_path / "digits", valid=7)
    changes = {
        "model__kind": "lm",
        "train__steps": 4,
        "validation__every": 2,
        "model__dropout": 0.0,
    }
    alone, _ = train_small(settings_of(data, tmp_path / "one", **changes))
    assert train_on_ranks(settings_of(data, tmp_path / "two", **changes)) == ["", ""]
    together = load(tmp_path / "two" / "result.json")
    assert together["log_probability"] == pytest.approx(alone["log_probability"], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{0}/lm"], "language model, which cannot translate"),
        (["--model", "{0}/nat", "--lm", "{0}/at"], "/at is a translator of kind at, not a lang"),
        (["--model", "{0}/nat", "--model", "b/nat"], "two systems are called nat"),
        (["--model", "{0}/nat", "--baseline", "x"], "--baseline x is none of the systems: nat"),
    ],
)
def test_mistakes(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(folder, *(argument.format(folder) for argument in arguments))


def test_checksum_of_weights(subwords: Subwords) -> None:
    ours = translator(subwords, "nat")
    before = weights_checksum(ours)
    assert weights_checksum(ours) == before
    with torch.no_grad():
        ours.model.tokens.weight[0, 0] += 1
    assert weights_checksum(ours) != before
