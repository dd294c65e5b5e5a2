"""Models in `oaxe evaluate`: translated, decoded as told, described in the report."""

from pathlib import Path
from typing import Any

import pytest
import torch

from oaxe.decoding.translator import Translator
from oaxe.evaluation.models import decodings, weights_checksum
from oaxe.evaluation.repetition import repeated_percent
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from tests.evaluation.samples import SOURCES, load, run_models, translator


def test_report_on_models(folder: Path, tmp_path: Path) -> None:
    options: dict[str, dict[str, Any]] = {
        "cmlm": {"length_candidates": 3},
        "transformer": {"beam": 2},
        "ctc": {},
    }
    shown = run_models(
        folder,
        *(word for name in options for word in ("--model", f"{name.upper()}={folder}/{name}")),
        *("--lm", folder / "language_model", "--speed", "--speed-sentences", "3"),
        *("--trials", "20", "--baseline", "TRANSFORMER", "--out", tmp_path),
        *("--beam", "2", "--length-candidates", "3"),
    )
    report = load(tmp_path / "scores.json")
    assert list(report["systems"]) == ["CMLM", "TRANSFORMER", "CTC"]
    for name, how in options.items():
        found = report["systems"][name.upper()]
        assert found["fluency"]["perplexity"] > 1
        assert found["repetition_of_subwords"] >= 0
        assert found["speed"]["latency_ms"]["sentences"] == 3
        assert found["speed"]["device"] == "cpu"
        assert found["model"]["system"] == name
        ours = Translator.from_pretrained(folder / name)
        assert found["model"]["crc32"] == weights_checksum(ours)
        expected = ours.translate(SOURCES, **how)
        assert (tmp_path / f"{name.upper()}.hyp.txt").read_text().split("\n")[:-1] == expected
    entries = report["systems"]
    assert entries["TRANSFORMER"]["speed"]["speed_up"] == {"latency": 1, "throughput": 1}
    assert report["gold"]["fluency"]["perplexity"] > 1
    assert entries["CMLM"]["ncm"] > 0
    assert entries["TRANSFORMER"]["ncm"] is entries["CTC"]["ncm"] is None
    reason = Translator.from_pretrained(folder / "transformer").system.no_ncm
    assert reason
    assert len(report["notes"]) == 2
    assert f"TRANSFORMER has no NCM: {reason}" in shown.replace("\n", " ")
    said = "CMLM: 3 lengths, repeats removed; TRANSFORMER: beam 2; CTC: repeats and blanks removed"
    assert f"Decoding: {said}\n" in shown
    assert f"Decoding: {said}</p>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_note_on_options_without_effect(folder: Path) -> None:
    models = [f"--model={folder}/{name}" for name in ("cmlm", "ctc")]
    no_effect = "no model here has this option of decoding"
    assert no_effect not in run_models(folder, *models, "--length-penalty", "2").replace("\n", " ")
    given = "--length-penalty", "2", "--refine-steps", "2"
    shown = run_models(folder, models[1], *given).replace("\n", " ")
    assert f"refine_steps, length_penalty: {no_effect}" in shown


def test_models_that_decode_alike_are_listed_together() -> None:
    def entry(words: str) -> dict[str, Any]:
        return {"model": {"decoding_in_words": words}}

    entries = {"a": entry("beam 5"), "b": entry("1 length"), "c": {"model": None}}
    entries["d"] = entry("beam 5")
    assert decodings({"systems": entries}) == ["Decoding: a, d: beam 5; b: 1 length"]
    assert decodings({"systems": {"file": {"model": None}}}) == []


def test_warns_of_a_model_of_another_language(folder: Path) -> None:
    model = "--model", f"{folder}/transformer", "--trials", "5", "--lang"
    warning = "warning: transformer translates into en, references are de"
    assert warning in run_models(folder, *model, "de").replace("\n", " ")
    assert "warning" not in run_models(folder, *model, "en")


def test_language_of_the_model_is_the_default(
    folder: Path, subwords: Subwords, tmp_path: Path
) -> None:
    into_japanese = translator(subwords, "cmlm")
    into_japanese.languages = "en", "ja"
    into_japanese.save_pretrained(tmp_path / "model")
    json_path = str(tmp_path / "s.json")
    for given, expected in (([], "ja"), (["--lang", "de"], "de")):
        run_models(folder, "--model", str(tmp_path / "model"), "--json", json_path, *given)
        assert load(tmp_path / "s.json")["language"] == expected
    with pytest.raises(UserError, match=r"model translates en to ja, but .* is \? to en; give"):
        run_models(folder, "--model", str(tmp_path / "model"), "--lang", "en")


def test_files_beside_models(folder: Path, tmp_path: Path) -> None:
    """A file has no NCM and no speed."""
    run_models(
        folder,
        *("--hyp", f"file={folder}/reference.txt", "--model", f"{folder}/cmlm", "--speed"),
        *("--speed-sentences", "1", "--trials", "20", "--json", str(tmp_path / "s.json")),
    )
    report = load(tmp_path / "s.json")
    file, model = (report["systems"][name] for name in ("file", "cmlm"))
    assert file["bleu"]["score"] == pytest.approx(100)
    assert (file["ncm"], file["speed"], file["repetition_of_subwords"]) == (None, None, None)
    assert model["speed"]["speed_up"] is None  # the baseline is the file
    assert report["notes"] == ["file has no speed: it is a file"]


def test_deduplication_equals_that_of_the_translator(
    folder: Path, subwords: Subwords, tmp_path: Path
) -> None:
    run_models(folder, "--model", f"{folder}/cmlm", "--json", str(tmp_path / "s.json"))
    found = load(tmp_path / "s.json")
    ours = Translator.from_pretrained(folder / "cmlm")
    both = {how: ours.translate_scored(SOURCES, repeats=how) for how in ("merge", "keep")}
    texts = {how: [best[0].text for best in both[how]] for how in both}
    assert texts["merge"] != texts["keep"]
    assert found["deduplication"]["unit"] == "subwords"
    assert found["deduplication"]["is_scored"] is True
    assert found["deduplication"]["bleu_with"] == found["bleu"]["score"]
    shown = {example["line"]: example["outputs"]["cmlm"] for example in found["examples"]}
    assert [shown[line] for line in range(1, 7)] == texts["merge"]
    tokens = [best[0].tokens for best in both["keep"]]
    removed = sum(len(best[0].tokens) for best in both["keep"]) - sum(
        len(best[0].tokens) for best in both["merge"]
    )
    assert removed > 0
    assert found["repetition_of_subwords"] == pytest.approx(100 * removed / sum(map(len, tokens)))
    assert found["repetition"] == repeated_percent(text.split() for text in texts["keep"])
    assert subwords.decode(tokens) == texts["keep"]


def test_repeats_that_are_forbidden_are_not_kept_to_be_counted(
    folder: Path, tmp_path: Path
) -> None:
    options = "--model", f"{folder}/cmlm", "--repeats", "forbid", "--json", f"{tmp_path}/s.json"
    assert "repeats forbidden" in run_models(folder, *options)
    found = load(tmp_path / "s.json")
    ours = Translator.from_pretrained(folder / "cmlm").translate(SOURCES, repeats="forbid")
    shown = {example["line"]: example["outputs"]["cmlm"] for example in found["examples"]}
    assert [shown[line] for line in range(1, 7)] == ours
    assert found["repetition_of_subwords"] == 0
    assert found["deduplication"]["is_scored"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{0}/language_model"], "language model, which cannot translate"),
        (["--model", "{0}/cmlm", "--lm", "{0}/transformer"], r"\(transformer\), not a language"),
        (["--model", "{0}/cmlm", "--model", "b/cmlm"], "two outputs are called cmlm"),
        (["--model", "{0}/cmlm", "--baseline", "x"], "--baseline x is not among the outputs: cmlm"),
    ],
)
def test_rejects_wrong_arguments(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_models(folder, *(argument.format(folder) for argument in arguments))


def test_checksum_of_weights(subwords: Subwords) -> None:
    ours = translator(subwords, "cmlm")
    before = weights_checksum(ours)
    assert weights_checksum(ours) == before
    with torch.no_grad():
        ours.system.transformer.tokens.weight[0, 0] += 1
    assert weights_checksum(ours) != before
