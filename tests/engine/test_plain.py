"""Graphs in numpy against ONNX Runtime, and translations without it."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oaxe.decoding.box import model_in_the_box
from oaxe.decoding.translator import Translator
from oaxe.engine import engine, plain
from oaxe.engine.graph import Graph
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from oaxe.text.symbols import SYMBOLS
from tests.decoding.samples import SENTENCES
from tests.engine.test_engine import CASES, exported, translator


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_same_numbers_as_onnx_runtime(
    case: str, int8: bool, subwords: Subwords, tmp_path: Path
) -> None:
    system = exported(translator(subwords, case), tmp_path / "new", int8=int8).system
    check_numbers(system, tmp_path / "new", int8=int8)


def test_the_same_numbers_of_older_exports() -> None:
    """What their layers read has one scale for the whole pass; the model in the box is one."""
    check_numbers(Translator.from_pretrained().system, model_in_the_box(), int8=True)


def check_numbers(system: engine.Engine, folder: Path, *, int8: bool) -> None:
    rng = np.random.default_rng(1)
    batch, source, factor = 3, 7, 2
    mask = (np.arange(source) < np.array([[7], [3], [1]])).astype(np.int32)
    longer = mask.repeat(factor, 1)
    tokens = rng.integers(len(SYMBOLS), system.vocab_size, (batch, factor * source))
    x = system._embedded(tokens[:, :source], mask.astype(bool), "source")
    y = system._embedded(tokens, longer.astype(bool), "target")
    given: dict[str, dict[str, Any]] = {
        "encoder.onnx": {"x": x, "mask": mask},
        "decoder.onnx": {"x": y, "mask": longer, "memory": x, "memory_mask": mask},
    }
    if "links" in system.tables:
        given["decoder.onnx"]["positions"] = system.tables["links"][: factor * source]
    for name, inputs in given.items():
        path = folder / name
        expected = engine.session(path).run(None, inputs)
        found = plain.Session(path).run(None, inputs)
        assert len(found) == len(expected) > 0
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            if ours.ndim == 3:  # positions that are there
                there = inputs["mask"].astype(bool)
                ours, theirs = ours[there], theirs[there]
            # In int8 a number between two steps may be rounded the other way.
            atol = 2e-2 if int8 else 2e-5
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=atol)
            finite = np.isfinite(theirs)
            assert np.abs(ours[finite] - theirs[finite]).mean() < atol / 10


def test_a_model_translates_without_onnx_runtime_and_says_so_once(
    subwords: Subwords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = exported(translator(subwords, "ctc"), tmp_path / "new").translate(SENTENCES)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(engine, "find_spec", lambda n: find_spec(n) if n != "onnxruntime" else None)
    engine._say_once.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            found = Translator.from_pretrained(tmp_path / "new")
            assert isinstance(found.system._encoder, plain.Session)
            assert found.translate(SENTENCES) == expected
    (message,) = (str(w.message) for w in said if "ONNX Runtime" in str(w.message))
    assert message.endswith('pip install "oaxe[cpu]"')


@pytest.mark.parametrize("content", [b"", b"\xff", b"\x3a\x05abcde", b"\x3a\x02\x0a\x00"])
def test_damaged_graphs_are_told(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be read: .*export it again"):
        engine.session(tmp_path / "a.onnx")


def test_other_operators_are_named(tmp_path: Path) -> None:
    graph = Graph({"transformer.tokens.weight": np.zeros((2, 4), np.float32)}, 1)
    graph.result("hidden", graph.add("Relu", "x"))
    (tmp_path / "a.onnx").write_bytes(graph.model({"x": "fff"}, "encoder"))
    with pytest.raises(ValueError, match="unknown operators: Relu"):
        plain.Session(tmp_path / "a.onnx")
