"""The command line as a user meets it, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import oaxe
from benchmarks import decoding as bench_decoding
from benchmarks import losses as bench_losses
from benchmarks.commands import bench
from oaxe.commands.app import app
from oaxe.model.transformer import SIZES
from oaxe.search.hypothesis import Hypothesis
from oaxe.support.errors import UserError


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oaxe", *arguments], capture_output=True, text=True, cwd=cwd
    )


def test_help_and_version() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in ("demo", "bench"):
        assert command in result.stdout
    assert run("--version").stdout.strip() == oaxe.__version__


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import oaxe.commands.app", ["torch", "numpy", "scipy", "matplotlib"]),
        ("import oaxe; oaxe.oaxe_loss", ["scipy", "matplotlib", "typer", "rich", "torch._dynamo"]),
    ],
)
def test_imports_only_what_is_needed(code: str, absent: list[str]) -> None:
    """--help must not wait for torch, nor the loss library for anything of the toolkit."""
    before = "import sys, torch\n" if "torch" not in absent else "import sys\n"
    check = f"{before}was = set(sys.modules)\n{code}\nprint(*set(sys.modules) - was)"
    loaded = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    ).stdout.split()
    assert any(name.startswith("oaxe") for name in loaded)
    assert not set(loaded) & set(absent)


def test_bench_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_losses, "STEP_PADDED", 64)
    path = tmp_path / "figures.json"
    arguments = ["losses", "--tokens", "3000", "--repeats", "1", "--steps", "1", "--json"]
    result = CliRunner().invoke(bench, [*arguments, str(path)])
    assert result.exit_code == 0, result.output
    figures = json.loads(path.read_text())
    solvers = figures["matching"]["solvers"]
    ours, theirs = solvers["oaxe.linear_assignment"], solvers["scipy loop"]
    assert ours["total_cost"] == pytest.approx(theirs["total_cost"], rel=1e-9)
    assert figures["matching"]["tokens"] >= 3000
    assert set(figures["step"]) >= {"F.cross_entropy", "oaxe.xe_loss", "oaxe.oaxe_loss"}


def test_bench_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone says as many words; the figures are those of the table."""
    said = {}

    def listening(
        decode: Callable[..., list[list[Hypothesis]]], *given: Any, **options: Any
    ) -> Any:
        hypotheses = decode(*given, **options)
        key = decode.__name__, options.get("beam"), options.get("refine_steps")
        said[key] = {h.length for of_sentence in hypotheses for h in of_sentence}
        return hypotheses

    for name in ("beam_search", "translate_batch"):
        real = getattr(bench_decoding, name)
        monkeypatch.setattr(bench_decoding, name, partial(listening, real))
    monkeypatch.setitem(SIZES, "12-1", SIZES["tiny"])
    path = tmp_path / "bench.json"
    arguments = (
        "bench decode --size tiny --vocab 100 --length 12 --batch 3 --repeats 2 --device cpu "
        "--seed 3"
    )
    result = CliRunner().invoke(app, [*arguments.split(), "--json", str(path)])
    assert result.exit_code == 0, result.output
    figures = json.loads(path.read_text())
    assert figures["seed"] == 3
    assert result.output.count("processor") == 1
    for sentences in (1, 3):
        assert len(figures[f"{sentences} at once"]) == 7
        assert all(len(rounds) == 2 for rounds in figures[f"{sentences} at once"].values())
    assert said["beam_search", 5, None] == said["beam_search", 1, None] == {12}
    assert said["translate_batch", None, 4] == {10, 11, 12, 13, 14}


def test_bench_refuses_a_bad_path_before_it_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["losses", "--json", str(tmp_path / "no" / "f.json")])
    assert isinstance(result.exception, UserError)
    assert "no folder" in str(result.exception)


def test_names_and_version_agree_with_the_package() -> None:
    from importlib.metadata import version

    assert oaxe.__version__ == version("oaxe")
    assert all(getattr(oaxe, name).__module__.startswith("oaxe.") for name in oaxe.__all__)
    assert set(oaxe.__all__) <= set(dir(oaxe))
    with pytest.raises(AttributeError, match="no attribute 'oaxe_los'"):
        _ = oaxe.oaxe_los
