"""The synthetic task against the paper's table, and the experiment from data to results."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from oaxe.losses import xe_loss
from oaxe.support.errors import UserError
from oaxe.support.jobs import StoppedError
from oaxe.text.batches import collate
from oaxe.text.symbols import SYMBOLS
from reproduction.synthetic import demo, reproduce
from reproduction.synthetic.display import verdict
from reproduction.synthetic.experiment import Experiment
from reproduction.synthetic.outcome import NONE, Outcome, ordering_of, outcome, outputs, repeats
from reproduction.synthetic.recipe import DEMO, METHODS, PRESETS, Recipe
from reproduction.synthetic.results import read_results, seconds_to
from reproduction.synthetic.task import ORDERINGS, PROBABILITIES, SPLITS, Task, reorder

TASK = Task(modes=5, numbers=40, shortest=3, longest=9, train=4_000, valid=50, test=60)
# Seconds, not minutes: nothing is learned, everything runs.
QUICK = replace(
    DEMO, numbers=12, shortest=4, longest=6, train=200, valid=20, test=30, update_tokens=128,
    xe_updates=6, updates=10, validate_every=3,
)  # fmt: skip


def by_slicing(numbers: list[int]) -> dict[str, list[int]]:
    """The five orderings, written another way."""
    middle = len(numbers) - len(numbers) // 2
    left, right = numbers[:middle], numbers[middle:]
    return {
        "Direct": left + right,
        "Reverse": right[::-1] + left[::-1],
        "Flip": right + left,
        "Flip-Right-Rev": right + left[::-1],
        "Flip-Left-Rev": right[::-1] + left,
    }


def test_orderings_are_the_paper_s() -> None:
    targets = ["1 3 10 7 9 2", "2 9 7 10 3 1", "7 9 2 1 3 10", "7 9 2 10 3 1", "2 9 7 1 3 10"]
    source = [1, 3, 10, 7, 9, 2]
    assert [reorder(source, mode) for mode in range(5)] == [
        [int(number) for number in target.split()] for target in targets
    ]


@pytest.mark.parametrize("n", range(14))
def test_orderings_of_any_length(n: int) -> None:
    numbers = list(range(100, 100 + n))
    expected = by_slicing(numbers)
    assert {name: reorder(numbers, mode) for mode, name in enumerate(ORDERINGS)} == expected
    if n % 2:  # the middle number belongs to the left half
        middle = numbers[n // 2]
        for name in ("Direct", "Reverse", "Flip-Right-Rev"):
            assert expected[name][n // 2] == middle


def test_data_are_what_the_task_says() -> None:
    corpus = TASK.corpus("train", seed=3)
    assert len(corpus) == TASK.train
    counts: Counter[str] = Counter()
    for source, target in zip(corpus.sources, corpus.targets, strict=True):
        orders = by_slicing(source.tolist())
        names = [name for name, right in orders.items() if right == target.tolist()]
        assert names
        if len(set(source.tolist())) == len(source) > 3:  # then only one ordering fits
            assert len(names) == 1
            counts[names[0]] += 1
    total = counts.total()
    for name, chance in zip(ORDERINGS, PROBABILITIES[5], strict=True):
        # five standard deviations
        assert abs(counts[name] / total - chance) < 5 * (chance * (1 - chance) / total) ** 0.5
    lengths = Counter(corpus.source_lengths.tolist())
    assert set(lengths) == set(range(3, 10))
    assert min(lengths.values()) > 0.8 * TASK.train / 7
    assert set(corpus.sources.tokens.tolist()) == set(range(len(SYMBOLS), TASK.vocab_size))
    assert all(sum(chances) == pytest.approx(1) for chances in PROBABILITIES.values())


def test_the_generator_depends_on_its_seed_alone() -> None:
    def tokens(task: Task, split: str, seed: int) -> list[int]:
        corpus = task.corpus(split, seed)
        return [*corpus.sources.tokens.tolist(), *corpus.targets.tokens.tolist()]

    torch.manual_seed(0)
    first = tokens(TASK, "valid", 1)
    assert tokens(replace(TASK, train=10, test=5), "valid", 1) == first
    assert tokens(TASK, "valid", 2) != first
    assert len({tuple(tokens(replace(TASK, train=50, test=50), s, 1)) for s in SPLITS}) == 3


@pytest.mark.parametrize("changes", [{"modes": 6}, {"numbers": 1}, {"shortest": 0}, {"longest": 2}])
def test_tasks_that_cannot_be(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        replace(TASK, **changes)


def test_repeats_by_hand() -> None:
    assert repeats([1, 2, 3], [1, 2, 3]) == 0
    assert repeats([1, 2, 3], [1, 1, 1]) == 2
    assert repeats([1, 1, 2], [1, 1, 2]) == 0  # as often as in the source
    assert repeats([1, 2, 3], [7, 8, 9]) == 0  # wrong, but not said twice
    assert repeats([1, 2, 3], [7, 7, 1]) == 1


def test_outcome_by_hand() -> None:
    task = replace(TASK, modes=2, numbers=10_000, test=4, shortest=4, longest=4)
    corpus = task.corpus("test", seed=1)
    sources = [source.tolist() for source in corpus.sources]
    assert all(len(set(source)) == 4 for source in sources)
    said = [sources[0], sources[1][::-1], sources[2][2:] + sources[2][:2], [sources[3][0]] * 4]
    assert ordering_of(task, sources[2], said[2]) == NONE  # Flip is not among two orders
    assert outcome(task, corpus, said, 0.5) == Outcome(
        exact_match=50.0,
        repetition=100 * 3 / 16,
        confidence=0.5,
        chosen={"Direct": 1, "Reverse": 1, NONE: 2},
    )


def test_outputs_are_the_best_numbers_in_order(tmp_path: Path) -> None:
    """Batched and sorted by length, against one sentence at a time from the logits."""
    experiment = quick(tmp_path)
    model, corpus = experiment.new_model(None), experiment.corpora["test"]
    said, confidence = outputs(model, corpus, batch_tokens=40)
    assert model.training
    model.eval()
    total = 0.0
    for i in range(len(corpus)):
        batch = collate(corpus, np.array([i]))
        inputs = torch.full_like(batch.target, SYMBOLS.index("<mask>"))
        with torch.no_grad():
            logits = model.logits(model.decode(inputs, inputs != 0, model.encode(batch.source)))
        logits[:, :, : len(SYMBOLS)] = -torch.inf
        logits[:, :, SYMBOLS.index("<unk>")] = -torch.inf
        probability, best = logits.softmax(-1).max(-1)
        assert said[i] == best[0].tolist()
        total += float(probability.sum())
    assert confidence == pytest.approx(total / corpus.target_lengths.sum(), rel=1e-5)


def quick(folder: Path, recipe: Recipe = QUICK, modes: int = 3, seed: int = 1) -> Experiment:
    return Experiment(recipe, modes, seed, folder, Console(file=io.StringIO()))


def test_an_experiment_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {method: quick(tmp_path).result(method) for method in METHODS}
    for method, result in first.items():
        assert result["method"] == method
        assert sum(result["chosen"].values()) == QUICK.test
        assert len(result["examples"][0]["source"]) == len(result["examples"][0]["output"])
        steps = [point["step"] for point in result["curve"]]
        assert steps == sorted(steps)
        assert steps[-1] == QUICK.updates
    # XE goes on from where the others branched off
    switch = [p for p in first["xe"]["curve"] if p["step"] <= QUICK.xe_updates]
    assert first["oaxe"]["curve"][: len(switch)] == switch
    monkeypatch.setattr(Experiment, "train", None)
    assert {method: quick(tmp_path).result(method) for method in METHODS} == first


def test_the_order_of_methods_changes_nothing(tmp_path: Path) -> None:
    """XE trains on in the folder of pre-training: the others must start from before that."""
    one, other = quick(tmp_path / "one"), quick(tmp_path / "other")
    for experiment, order in ((one, ("xe", "oaxe")), (other, ("oaxe", "xe"))):
        for method in order:
            experiment.result(method)
    for method in ("xe", "oaxe"):
        a, b = one.result(method), other.result(method)
        assert [p["loss"] for p in a["curve"]] == [p["loss"] for p in b["curve"]]
        assert a["examples"] == b["examples"]


def test_pretraining_is_xe(tmp_path: Path) -> None:
    """Its first validation loss, by hand from the model that training starts with."""
    recipe = replace(QUICK, lr=0.0)
    experiment = quick(tmp_path, recipe)
    reported = experiment.result("xe")["curve"][0]["loss"]
    batch = collate(experiment.corpora["valid"], np.arange(recipe.valid))
    real = batch.target != 0
    inputs = torch.where(real, SYMBOLS.index("<mask>"), 0)
    model = experiment.new_model(None).eval()
    with torch.no_grad():
        logits = model.logits(model.decode(inputs, real, model.encode(batch.source)))
    expected = xe_loss(logits, batch.target.masked_fill(~real, -100))
    assert reported == pytest.approx(float(expected), rel=1e-4)


def test_demo_writes_a_result_and_a_report(tmp_path: Path) -> None:
    printed = io.StringIO()
    result = demo.run(tmp_path / "out", 3, Console(file=printed, width=100), QUICK)
    assert json.loads((tmp_path / "out/result.json").read_text()) == result
    for figure in ("exact_match", "repetition"):
        assert set(result[figure]) == {"xe", "oaxe"}
        assert all(0 <= value <= 100 for value in result[figure].values())
    assert result["finished"]
    assert result["seconds"] > 0
    assert len(result["examples"]) == 3
    matrix = result["matrix"]
    assert sorted(matrix["place_of"]) == list(range(len(matrix["target"])))
    assert matrix["target"] == by_slicing(matrix["source"])[matrix["ordering"]]
    assert "<svg" in (tmp_path / "out/report.html").read_text()
    assert "exact match" in printed.getvalue()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.html",
        "result.json",
    ]


def test_demo_stopped_in_oaxe_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Experiment, method: str) -> None:
        raise StoppedError

    monkeypatch.setattr(Experiment, "result", stopped)
    result = demo.run(tmp_path, 1, Console(file=io.StringIO()), QUICK)
    assert not result["finished"]
    assert result["exact_match"] == {}
    assert result["curves"]["xe"][-1]["step"] == QUICK.xe_updates
    assert "stopped before its end" in (tmp_path / "report.html").read_text()


def test_ctrl_c_leaves_a_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "reproduction", "demo", "--out", "here"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("valid: step 25"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait(60) == 130
    assert "Traceback" not in rest
    result = json.loads((tmp_path / "here/result.json").read_text())
    assert not result["finished"]
    assert result["curves"]["xe"][0]["step"] == 25
    assert (tmp_path / "here/report.html").exists()


def test_the_example_in_the_readme() -> None:
    lines = (Path(__file__).parents[2] / "README.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("source "))
    source = [int(word) for word in lines[start].split()[1:]]
    for line in lines[start + 1 : start + 3]:
        words = line.split()
        output = [int(word) for word in words[1 : 1 + len(source)]]
        assert verdict(output, source, 5) == " ".join(words[1 + len(source) :])


def test_a_folder_of_another_recipe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce.keep_to(QUICK, tmp_path)
    reproduce.keep_to(QUICK, tmp_path)
    monkeypatch.setitem(PRESETS, "tiny", replace(QUICK, lr=0.5))
    with pytest.raises(UserError, match="another recipe"):
        run_quick(tmp_path)
    with pytest.raises(UserError, match="none of these methods"):
        run_quick(tmp_path, parts=["scratch"], methods=["xe"])


def test_time_to_95_counts_what_lasts_after_the_switch() -> None:
    def seconds(*scores: float, method: str = "oaxe") -> float | None:
        curve = [{"step": 10 * i, "seconds": i, "exact_match": s} for i, s in enumerate(scores, 1)]
        return seconds_to(95, {"method": method, "xe_updates": 20, "curve": curve})

    assert seconds(0, 0, 90, 96, 99) == 4
    assert seconds(0, 0, 96, 90, 99) == 5
    assert seconds(0, 0, 96, 97, 80) is None
    assert seconds(99, 99, 99) == 3  # what XE had is not OaXE's
    assert seconds(99, 99, 99, method="oaxe-annealed") == 1


def run_quick(out: Path, **options: object) -> str:
    printed = io.StringIO()
    arguments = {"preset": "tiny", "out": out, "seeds": 2, "jobs": 2} | options
    reproduce.run(**arguments, console=Console(file=printed, width=200))  # type: ignore[arg-type]
    return printed.getvalue()


def test_reproduce_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", QUICK)
    printed = run_quick(tmp_path)
    cells = list(reproduce.plan(QUICK, seeds=2))
    assert printed.count("done: ") == len(cells) == 22
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(cell.methods) for cell in cells)
    assert {row["method"] for row in rows} == set(METHODS)
    assert {row["part"] for row in rows} == set(reproduce.PARTS)
    tables = (tmp_path / "results.md").read_text()
    assert tables.count("**") == 2 * 6  # titles
    main = [r for r in read_results(tmp_path / "cells") if r["part"] == "modes"]
    five = [r["exact_match"] for r in main if r["method"] == "xe" and r["modes"] == 5]
    row = next(line for line in tables.splitlines() if line.startswith("| XE |"))
    expected = f"{np.mean(five):.1f} ± {np.std(five, ddof=1):.1f}"
    assert row.split("|")[-2].strip() == expected
    assert "<svg" in (tmp_path / "results.html").read_text()
    assert (tmp_path / "exact_match.png").stat().st_size > 10_000
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").rglob("*.json")}
    run_quick(tmp_path)
    assert written == {path: path.stat().st_mtime_ns for path in written}


def test_reproduce_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", QUICK)
    run_quick(tmp_path, seeds=1, parts=["numbers"], methods=["xe"])
    assert len(list((tmp_path / "cells").glob("*/xe.json"))) == 2
    with pytest.raises(UserError, match="there is no part nonsense"):
        run_quick(tmp_path, parts=["nonsense"])
    with pytest.raises(UserError, match="there is no method nonsense"):
        run_quick(tmp_path, methods=["nonsense"])


def test_a_cell_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", QUICK)
    bad = next(iter(reproduce.plan(replace(QUICK, numbers=3), 1, ["numbers"])))
    assert bad.recipe.numbers == 0  # no task at all
    good = next(iter(reproduce.plan(QUICK, 1, ["scratch"])))
    failed = reproduce.train_all([bad, good], tmp_path, 1, Console(file=io.StringIO()))
    assert list(failed) == [bad.name]
    assert "at least 2 numbers" in failed[bad.name]
    assert (tmp_path / good.name / "oaxe-scratch.json").exists()


def test_reproduce_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "reproduction", "synthetic", "--out", "here", "--seeds",
        "1", "--part", "scratch",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    logs = "here/cells/*/log.txt"
    while not any("train: step" in log.read_text() for log in tmp_path.glob(logs)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on from here" in out
    assert "Traceback" not in out
    assert list(tmp_path.glob("here/cells/*/oaxe-scratch/checkpoints/step-*"))
