"""Benchmarks run, compare like with like, and write the numbers that they print."""

import json
import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import assignment, decode, detection, gpu, losses, sets, step
from benchmarks.__main__ import app
from benchmarks.harness import Report, relative_time, speed_up
from benchmarks.inputs import costs_like_a_nat
from oaxe.model import attention
from oaxe.model.masking import IGNORED
from oaxe.model.transformer import SIZES
from oaxe.search.hypothesis import Hypothesis
from oaxe.support.errors import UserError
from oaxe.support.timing import Timing, wall_clock
from tests.cli import printed

run = partial(printed, app)


def test_help_lists_every_benchmark() -> None:
    shown = run("--help")
    names = [
        "losses",
        "assignment",
        "detection",
        "sets",
        "step",
        "dag",
        "decode",
        "cpu",
        "training",
    ]
    for name in (*names, "serve"):
        assert name in shown
        assert "--json" in run(name, "--help")


def test_losses_has_the_total_cost_of_scipy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "STEP_PADDED", 64)
    path = tmp_path / "result.json"
    run("losses", "--tokens", "3000", "--repeats", "1", "--steps", "1", "--json", str(path))
    result = json.loads(path.read_text())
    solvers = result["matching"]["contenders"]
    ours, theirs = solvers["oaxe.linear_assignment"], solvers["scipy loop"]
    assert ours["total cost"] == pytest.approx(theirs["total cost"], rel=1e-9)
    assert theirs["x scipy"] == 1
    assert result["matching"]["tokens"] >= 3000
    step = result["training step"]["contenders"]
    assert step.keys() >= {"F.cross_entropy", "oaxe.xe_loss", "oaxe.oaxe_loss"}


def test_cpu_measures_every_contender_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    options = "--size 12-1 --vocab 100 --length 12 --batches 2 --repeats 1 --threads 1"
    run("cpu", *options.split(), "--json", str(path))
    found = json.loads(path.read_text())["2 at once"]["contenders"]
    expected = {f"engine 12-1, {kind}" for kind in ("1 length", "5 lengths", "CTC", "DAG")}
    beams = [f"engine 12-1, DAG, beam {beam}" for beam in (5, 20)]
    expected |= {*beams, *(f"{name}, n-grams" for name in beams)}
    if find_spec("ctranslate2") is not None:
        shares = [f"CTranslate2 12-1, greedy, {share}" for share in ("threads", "workers")]
        expected |= {*shares, *(name.replace("greedy", "beam 5") for name in shares)}
        # The faster one is the measure of all.
        assert min(found[name]["time / CTranslate2 12-1, greedy"] for name in shares) == 1
    assert set(found) == expected
    assert all(0 < entry["seconds"][0] < 60 for entry in found.values())


def test_decode_gives_every_contender_the_same_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}

    def listening(
        decoder: Callable[..., list[list[Hypothesis]]], *given: Any, **options: Any
    ) -> Any:
        hypotheses = decoder(*given, **options)
        key = decoder.__name__, options.get("beam"), options.get("refine_steps")
        found[key] = {h.length for of_sentence in hypotheses for h in of_sentence}
        return hypotheses

    for name in ("beam_search", "translate_lengths"):
        real = getattr(decode, name)
        monkeypatch.setattr(decode, name, partial(listening, real))
    monkeypatch.setitem(SIZES, "12-1", SIZES["tiny"])
    path = tmp_path / "result.json"
    arguments = (
        "decode --size tiny --vocab 100 --length 12 --batch 3 --repeats 2 --device cpu --seed 3"
    )
    shown = run(*arguments.split(), "--json", str(path))
    result = json.loads(path.read_text())
    assert result["seed"] == 3
    assert shown.count("processor") == 1
    for sentences in (1, 3):
        contenders = result[f"{sentences} at once"]["contenders"]
        assert len(contenders) == 7
        assert all(len(contender["seconds"]) == 2 for contender in contenders.values())
    assert found["beam_search", 5, None] == found["beam_search", 1, None] == {12}
    assert found["translate_lengths", None, 4] == {10, 11, 12, 13, 14}


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks for GPUs run on the CPU, without kernels."""
    rates = {"device": "none", "flop_per_second": 1e9, "bytes_per_second": 1e9}
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "require_gpu", lambda: None)
    monkeypatch.setattr(gpu, "ceilings", lambda: rates)
    monkeypatch.setattr(gpu, "device_clock", lambda run, calls=1: wall_clock(run))
    monkeypatch.setattr(gpu, "graph_of", lambda run, calls: run)
    monkeypatch.setattr(gpu, "peak_gib", lambda run: 1.0)
    monkeypatch.setattr(attention, "KERNELS", attention.KERNELS)


def test_step_compares_all_losses(tmp_path: Path, pretended_gpu: None) -> None:
    path = tmp_path / "result.json"
    arguments = "step --tokens 60 --vocab 100 --size tiny --repeats 1 --eager --json"
    run(*arguments.split(), str(path))
    result = json.loads(path.read_text())
    for title, most in (("output layer", 8), ("step", 11)):
        found, failed = result[title]["contenders"], result[title]["failed"]
        assert failed.keys() <= {"XE, F.linear_cross_entropy", "XE, Liger"}  # need a GPU
        assert most - 2 <= len(found) + len(failed) <= most
        assert found["XE, F.cross_entropy"]["x plain XE"] == 1


def test_losses_of_the_step_agree(pretended_gpu: None) -> None:
    """Plain, fused and peers compute the same cross entropy, and the same OaXE."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 7, 16), torch.randn(50, 16)
    target = torch.randint(50, (3, 7))
    target[1, 5:] = IGNORED
    theirs, ours = step.their_losses(compiled=False), step.our_losses()
    plain = theirs[step.PLAIN](hidden, weight, target)
    assert ours[step.OWN](hidden, weight, target) == pytest.approx(plain.item(), rel=1e-5)
    if (fused := theirs.get("XE, F.linear_cross_entropy")) is not None:
        assert fused(hidden, weight, target).item() == pytest.approx(plain.item(), rel=0.03)
    papers = theirs["OaXE, as in the paper (scipy)"](hidden, weight, target)
    assert ours[step.OAXE](hidden, weight, target) == pytest.approx(papers.item(), rel=1e-5)
    assert papers < plain


def test_assignment_has_the_total_cost_of_scipy(tmp_path: Path, pretended_gpu: None) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "result.json"
    problems = assignment.draw_problems([3, 5, 5, 9], partial(costs_like_a_nat, rng))
    assignment.compare(Report(path), "small", problems, 1, 1e9)
    result = json.loads(path.read_text())["small"]
    solvers = result["contenders"]
    assert (result["sentences"], result["tokens"], result["longest"]) == (4, 22, 9)
    expected = pytest.approx(solvers["scipy loop"]["total cost"])
    assert solvers["oaxe.linear_assignment"]["total cost"] == expected
    assert solvers.keys() >= {"the same, CUDA graph", "scipy, threads"}


def test_detection_has_the_total_cost_of_scipy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "QUERIES", (9, 30))
    monkeypatch.setattr(detection, "OBJECTS", (1, 9))
    path = tmp_path / "result.json"
    run("detection", "--batch", "3", "--repeats", "1", "--json", str(path))
    result = json.loads(path.read_text())
    tables = {title: result[title]["contenders"] for title in result if " x " in title}
    assert len(tables) == 2 * 2 * 2
    assert {"3 x 30 x 9, float16", "3 x 9 x 9, float32"} <= tables.keys()
    for solvers in tables.values():
        assert solvers.keys() >= {"oaxe.linear_assignment", "scipy loop"}
        expected = pytest.approx(solvers["scipy loop"]["total cost"], rel=1e-6)
        assert all(solver["total cost"] == expected for solver in solvers.values())


def test_all_orders_of_sets_have_one_least_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"RECORDINGS": 3, "VOICES": (2, 4), "FRAMES": 20, "MOST_ORDERED": 3, "TEXTS": (3,),
             "SLOTS": (5,), "TAGS": 30, "PICTURES": 2, "PHRASES": (4,), "VOCAB": 20}  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(sets, name, value)
    path = tmp_path / "result.json"
    run("sets", "--repeats", "1", "--json", str(path))
    result = json.loads(path.read_text())
    tables = {title: result[title]["contenders"] for title in result if ", " in title}
    assert len(tables) == 4
    assert sets.ALL_ORDERS in tables["3 recordings, 2 voices"]
    assert sets.ALL_ORDERS not in tables["3 recordings, 4 voices"]
    for contenders in tables.values():
        losses = {name: contender["loss"] for name, contender in contenders.items()}
        given = losses.pop(sets.IN_ORDER)
        assert losses.keys() >= {sets.OURS, "scipy loop"}
        assert losses[sets.OURS] < given
        assert all(loss == pytest.approx(losses[sets.OURS], rel=1e-5) for loss in losses.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="would run for minutes")
@pytest.mark.parametrize("name", ["assignment", "step"])
def test_gpu_benchmarks_say_what_they_need(name: str) -> None:
    with pytest.raises(UserError, match="needs a CUDA device"):
        run(name)


def test_a_bad_path_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        run("losses", "--json", str(tmp_path / "no" / "f.json"))


def test_ratios() -> None:
    timings = {"a": Timing([1.0, 10.0, 2.0]), "b": Timing([2.0, 20.0, 6.0])}
    assert relative_time(timings, "a") == {"a": 1, "b": 2}  # within rounds: 2, 2, 3
    assert relative_time(timings, "none") == {}
    assert speed_up(timings, "b") == {"a": 3, "b": 1}


def test_the_report_prints_and_stores_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    report = Report(path, seed=7)
    timings = {"fast": Timing([0.001, 0.002]), "slow": Timing([0.5, 0.7])}
    columns = {"cost": {"fast": 1234.56, "slow": math.pi}, "GiB": {"slow": 0.25}}
    report.add("matching", timings, columns, sentences=4700)
    result = json.loads(path.read_text())
    assert (result["seed"], result["matching"]["sentences"]) == (7, 4700)
    assert "GiB" not in result["matching"]["contenders"]["fast"]
    assert result["matching"]["contenders"]["slow"] == {
        "seconds": [0.5, 0.7], "cost": math.pi, "GiB": 0.25
    }  # fmt: skip
    shown = capsys.readouterr().out
    for text in ("matching: sentences 4,700", "1,235", "3.142", "0.2500", "600.0", "500-700"):
        assert text in shown
