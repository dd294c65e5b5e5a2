"""Trained models on a CPU: rows of all searches, and BLEU of what they really write."""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sacrebleu

from benchmarks.__main__ import app
from benchmarks.contender import ctranslate2
from benchmarks.page import BEGIN, END
from oaxe.decoding.exported import export
from oaxe.decoding.translator import Translator
from oaxe.text.corpus import load_subwords
from tests.cli import printed
from tests.models import eager_to_end, micro
from tests.runs import make_data, settings_of, train_small
from tests.systems.digits import SIZE

run = partial(printed, app)
ROWS = ("cmlm, 3 lengths", "cmlm, up to 3 lengths", "cmlm, 1 length", "ctc", "dag")
LENGTHS: tuple[dict[str, Any], ...] = ({"length_share": 0.0}, {}, {"length_candidates": 1})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with prepared digits, a run that has learned to reverse them, and random models."""
    folder = tmp_path_factory.mktemp("quality")
    data = make_data(folder, pairs=3000, test=40)
    changes: dict[str, Any] = {
        "data__update_tokens": 512, "data__batch_tokens": 2048, "train__steps": 300,
        "validation__every": 300, "model__dropout": 0.0, "cmlm__inputs": "unobserved",
        "decoding__length_candidates": 3, "decoding__length_share": 0.1,
    }  # fmt: skip
    with mock.patch("tests.runs.SMALL", SIZE):
        train_small(settings_of(data, folder / "cmlm", **changes))
    subwords = load_subwords(data)
    for name in ("ctc", "dag", "transformer"):
        system = micro(name, vocab_size=subwords.vocab_size, max_length=40)
        if name == "transformer":
            eager_to_end(system, 2.5)
        Translator(system, subwords, languages=("aa", "bb")).save_pretrained(folder / name)
    return folder


def measured(folder: Path, out: Path, *names: str) -> dict[str, dict[str, Any]]:
    given = [part for name in names for part in ("--model", str(folder / name))]
    options = "--batches 5 --sentences 3 --threads 2 --repeats 1 --waiting passive"
    run("cpu-quality", "--data", str(folder / "data"), *given, *options.split(), "--json", str(out))
    rows: dict[str, dict[str, Any]] = json.loads(out.read_text())["results"]["contenders"]
    return rows


def references(folder: Path) -> tuple[list[str], list[str]]:
    source, target = (
        (folder / "data" / f"test.{side}.txt").read_text().splitlines()
        for side in ("source", "target")
    )
    return source, target


def score(texts: list[str], targets: list[str]) -> float:
    return float(sacrebleu.corpus_bleu(texts, [targets], force=True).score)


def test_one_pass_models_have_the_bleu_of_their_text(models: Path, tmp_path: Path) -> None:
    rows = measured(models, tmp_path / "result.json", "cmlm", "ctc", "dag")
    assert tuple(rows) == ROWS
    source, target = references(models)
    ours = Translator.from_pretrained(models / "cmlm" / "model")
    export(ours, tmp_path / "int8", int8=True)
    engine = Translator.from_pretrained(tmp_path / "int8", threads=1)
    for row, options in zip(ROWS, LENGTHS, strict=False):
        alone = [engine.translate([line], **options)[0] for line in source]
        assert rows[row]["BLEU"] == pytest.approx(score(alone, target))
        assert rows[row]["BLEU"] > 20
        assert score(alone, ours.translate(source, **options)) > 90
    times = [row[key] for row in rows.values() for key in ("one sentence, ms", "5 at once, 1/s")]
    assert min(times) > 0


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="needs CTranslate2")
def test_ctranslate2_searches_as_torch_does(models: Path, tmp_path: Path) -> None:
    rows = measured(models, tmp_path / "result.json", "transformer")
    assert tuple(rows) == ("transformer, greedy", "transformer, beam 5")
    assert {row["1 at once, threads"] for row in rows.values()} <= {"1 x 2", "2 x 1"}
    ours, (source, _) = Translator.from_pretrained(models / "transformer"), references(models)
    export(ours, tmp_path / "float", format="ctranslate2")
    for beam in (1, 5):
        how: dict[str, Any] = {
            "max_length": 40,
            "max_ratio": 2.0,
            "length_penalty": 1.0,
            "beam_size": beam,
        }
        translate = ctranslate2(tmp_path / "float", workers=2, threads=1, **how)
        expected = [ours.translate([line], beam=beam)[0] for line in source]
        same = [translate([line])[0] == text for line, text in zip(source, expected, strict=True)]
        assert sum(same) >= 0.9 * len(same)  # others never end, and are cut elsewhere
        assert len(set(expected)) > 3


def test_the_page_has_a_row_for_each_search_and_a_picture(models: Path, tmp_path: Path) -> None:
    path, document, picture = (tmp_path / f"new.{end}" for end in ("json", "md", "png"))
    rows = measured(models, path, "cmlm")
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    run("page", str(path), str(document), "--picture", str(picture))
    text = document.read_text()
    assert "old" not in text
    assert text.endswith("after\n")
    for row in rows.values():
        assert f"| cmlm | {row['search']} | {row['BLEU']:.1f} | **" in text
    assert "40 test sentences" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
