"""The commands of the benchmarks, on small inputs."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import decoding as bench_decoding
from benchmarks import losses as bench_losses
from benchmarks.commands import bench
from oaxe.model.transformer import SIZES
from oaxe.search.hypothesis import Hypothesis
from oaxe.support.errors import UserError


def test_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_losses, "STEP_PADDED", 64)
    path = tmp_path / "results.json"
    arguments = ["losses", "--tokens", "3000", "--repeats", "1", "--steps", "1", "--json"]
    result = CliRunner().invoke(bench, [*arguments, str(path)])
    assert result.exit_code == 0, result.output
    results = json.loads(path.read_text())
    solvers = results["matching"]["solvers"]
    ours, theirs = solvers["oaxe.linear_assignment"], solvers["scipy loop"]
    assert ours["total_cost"] == pytest.approx(theirs["total_cost"], rel=1e-9)
    assert results["matching"]["tokens"] >= 3000
    assert set(results["step"]) >= {"F.cross_entropy", "oaxe.xe_loss", "oaxe.oaxe_loss"}


def test_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every system decodes the same number of words; the file has the numbers of the table."""
    lengths = {}

    def recording(
        decode: Callable[..., list[list[Hypothesis]]], *given: Any, **options: Any
    ) -> Any:
        hypotheses = decode(*given, **options)
        key = decode.__name__, options.get("beam"), options.get("refine_steps")
        lengths[key] = {h.length for of_sentence in hypotheses for h in of_sentence}
        return hypotheses

    for name in ("beam_search", "translate_batch"):
        real = getattr(bench_decoding, name)
        monkeypatch.setattr(bench_decoding, name, partial(recording, real))
    monkeypatch.setitem(SIZES, "12-1", SIZES["tiny"])
    path = tmp_path / "bench.json"
    arguments = (
        "decode --size tiny --vocab 100 --length 12 --batch 3 --repeats 2 --device cpu --seed 3"
    )
    result = CliRunner().invoke(bench, [*arguments.split(), "--json", str(path)])
    assert result.exit_code == 0, result.output
    results = json.loads(path.read_text())
    assert results["seed"] == 3
    assert result.output.count("processor") == 1
    for sentences in (1, 3):
        assert len(results[f"{sentences} at once"]) == 7
        assert all(len(rounds) == 2 for rounds in results[f"{sentences} at once"].values())
    assert lengths["beam_search", 5, None] == lengths["beam_search", 1, None] == {12}
    assert lengths["translate_batch", None, 4] == {10, 11, 12, 13, 14}


def test_refuses_a_bad_path_before_it_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["losses", "--json", str(tmp_path / "no" / "f.json")])
    assert isinstance(result.exception, UserError)
    assert "no folder" in str(result.exception)
