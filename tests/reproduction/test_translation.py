"""The paper's translation tables, end to end, on a language that is made up here."""

import csv
import io
import json
import random
import re
import shutil
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from rich.console import Console

from oaxe.support.devices import usable_device
from oaxe.support.errors import UserError
from reproduction import results as results_module
from reproduction.experiment import AGAIN, Experiment
from reproduction.experiments import DECODED, EXPERIMENTS, with_ancestors
from reproduction.folder import Folder, write_json
from reproduction.levers import BASE
from reproduction.recipes import ANY, PRESETS, Recipe, Stage
from reproduction.results import LATENCIES, EvalSet, Results
from reproduction.steps import Study, prepare_raw, train_and_test
from reproduction.tables import MORE, NOT_IN_ALL, TABLES, Table, chosen, rows
from reproduction.translation import datasets_of, plan, run
from tests.reproduction.test_browser import CHROMIUM, browse

DATASET = "tatoeba-en-de"
NAMES = [name for name in TABLES if name not in NOT_IN_ALL]
# Trained on raw data like others that are, or for another share of the updates: not once more here.
LEFT_OUT = {f"{name}-raw" for name in (*DECODED, *MORE, "mask-predict", "xe-unobserved")}
LEFT_OUT -= {"dag-beam-lm-raw"}
LEFT_OUT |= {"axe-annealed-steady", *(f"oaxe-untruncated-{p}-percent" for p in (3, 10, 67))}
WORDS = {"red": "rot", "dog": "hund", "sees": "sieht", "old": "alt", "cat": "katze", "the": "das",
         "house": "haus", "and": "und", "not": "nicht", "here": "hier"}  # fmt: skip
OTHER_TEACHERS = (("teacher-seed-", ""), ("teacher-text-", ""), ("distilled-", "-data"))
SHORT = Stage(4, 2e-3, 2, every=100, average=1)
MICRO = Recipe(
    at=SHORT, lm=SHORT, cmlm=SHORT, finetune=replace(SHORT, steps=2),
    equal=replace(SHORT, ema=0.9),
    ngrams=replace(SHORT, steps=2), update_tokens=300, batch_tokens=600, size="tiny",
    teacher="tiny", deep="tiny", bf16=False, vocab_size=70, pairs=150, held_out=10, lengths=(3, 6),
    max_length=30,
)  # fmt: skip


def fewer(table: Table) -> Table:
    """Without what is left out."""
    shown = [
        row._replace(experiments=tuple(n for n in row.experiments if n not in LEFT_OUT))
        for row in table.rows
    ]
    both = zip(table.rows, shown, strict=True)
    return replace(table, rows=tuple(new for old, new in both if new.key == old.key))


FEWER = {name: fewer(TABLES[name]) for name in NAMES}


def make_sets(folder: Path) -> Path:
    """Word by word, the last word first; some sentences with several references."""
    rng = random.Random(1)

    def sentence() -> list[str]:
        return rng.choices(list(WORDS), k=rng.randint(2, 8))

    def german(words: list[str]) -> str:
        return " ".join(WORDS[word] for word in (words[-1], *words[:-1]))

    here = folder / DATASET
    here.mkdir(parents=True)
    for split, count in (("train", 200), ("valid", 15), ("test", 15)):
        lines = [sentence() for _ in range(count)]
        (here / f"{split}.en").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        (here / f"{split}.de").write_text("".join(f"{german(line)}\n" for line in lines))
    several = [sentence() for _ in range(12)]
    entries = [{"src": " ".join(s), "refs": [german(s), german(s[::-1])]} for s in several]
    (here / "multiref.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in entries))
    return folder


def reproduce(out: Path, sets: Path, *names: str, **options: Any) -> str:
    """Returns what was printed."""
    printed = io.StringIO()
    wanted = datasets_of(names, [DATASET])
    options = {"preset": "tiny", "seeds": 1, "jobs": 1, **options}
    run(wanted, folder=sets, out=out, console=Console(file=printed, width=300), **options)
    return printed.getvalue()


@pytest.fixture(autouse=True)
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(PRESETS["tiny"], ANY, MICRO)
    patch.setattr(results_module, "TRIALS", 50)
    for name, table in FEWER.items():
        patch.setitem(TABLES, name, table)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def everything(sets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables, made once; tests that change something take a copy."""
    out = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        names = [name for name in NAMES if name != "divergent"]
        printed = reproduce(out, sets, *names)
        printed += reproduce(out, sets, "divergent")
    (out / "printed.txt").write_text(printed)
    return out


def study_of(out: Path, sets: Path, dataset: str = DATASET) -> Study:
    return Study(Folder(out, dataset, "tiny"), MICRO, sets)


def rows_of(out: Path, name: str) -> list[dict[str, str]]:
    with (out / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def value(out: Path, name: str, system: str, column: str, text: str = "test") -> float:
    found = [
        float(row["value"])
        for row in rows_of(out, name)
        if (row["system"], row["column"], row["text"]) == (system, column, text)
    ]
    assert len(found) == 1, (name, system, column, text, found)
    return found[0]


def cells(out: Path, name: str, row: str, number: int = 0) -> dict[str, str]:
    """A row of the first table of the Markdown, by the names of its columns."""
    lines = [re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in (out / f"{name}.md").read_text()
             .splitlines() if line.startswith("|")]  # fmt: skip
    return dict(zip(lines[0], [line for line in lines if line[0] == row][number], strict=True))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_there(name: str, everything: Path) -> None:
    page = (everything / f"{name}.html").read_text(encoding="utf-8")
    text = (everything / f"{name}.md").read_text(encoding="utf-8")
    assert TABLES[name].paper in page
    assert TABLES[name].paper in text
    assert f"python -m reproduction {name} --data {DATASET} --preset tiny --seeds 1\n" in text
    shown = {row["system"] for row in rows_of(everything, name)}
    if TABLES[name].form == "scores":
        trained = {one for row in TABLES[name].rows for one in row.experiments}
        assert shown >= {one for one in trained if not one.endswith(AGAIN)}
    links = re.findall(r'<a href="([^"]*result\.json)">([^<]+)</a>', page)
    assert len(links) == len(TABLES[name].experiments)
    for link, label in links:
        assert f"| {label} |" in text
        result = json.loads((everything / link).read_text())
        assert {"settings", "seed", "environment", "training", "tests", "recipe"} <= {*result}
        assert {"commit", "device", "torch"} <= {*result["environment"]}
    drawn = {"truncation": 1, "pretraining": 1, "lengths": 4}.get(name, 0)
    assert page.count("<svg") == drawn
    pictures = re.findall(r"!\[[^]]+\]\((.*\.png)\)", text)
    assert sorted(pictures) == sorted(path.name for path in everything.glob(f"{name}*.png"))
    assert len(pictures) == drawn


def test_trains_each_experiment_once(everything: Path) -> None:
    printed = (everything / "printed.txt").read_text()
    done = re.findall(r"^done: .*/([^/\s]+)\s*$", printed, re.MULTILINE)
    used = chain.from_iterable(with_ancestors(TABLES[name].experiments) for name in NAMES)
    trained = {*used} - {"student"}  # here students are as large as the teacher
    expected = [f"{name}-seed-1" for name in trained]
    expected += ["data", "ngrams", "teacher-text", "distilled-data", "judged-text", "em-data"]
    expected += [f"teacher-text-{n}" for n in (2, 3)] + [f"distilled-{n}-data" for n in (2, 3)]
    expected += [f"teacher-seed-{n}" for n in (2, 3)]  # whose text DDRS learns from, too
    assert sorted(done) == sorted(expected)


def test_keeps_only_the_model_of_a_run(everything: Path) -> None:
    for folder in (everything / DATASET / "tiny/runs").iterdir():
        assert (folder / "model").is_dir()
        assert not (folder / "checkpoints").exists()
        assert not (folder / "best").exists()


def test_run_without_result_is_only_tested(everything: Path, sets: Path, tmp_path: Path) -> None:
    inside, system = Path(DATASET) / "tiny", "cmlm-raw-seed-1"
    shutil.copytree(everything / inside, tmp_path / inside)
    result, run_folder = (tmp_path / inside / kind / system for kind in ("results", "runs"))
    before = json.loads((result / "result.json").read_text())
    written = (run_folder / "result.json").stat().st_mtime_ns
    shutil.rmtree(result)
    reproduce(tmp_path, sets, "raw")
    again = json.loads((result / "result.json").read_text())
    assert again["training"] == before["training"]
    assert again["tests"]["test"]["bleu"] == before["tests"]["test"]["bleu"]
    assert (run_folder / "result.json").stat().st_mtime_ns == written
    shutil.rmtree(result)
    config = run_folder / "config.yaml"
    config.write_text(config.read_text().replace("lr:", "lr: 0.5 #"))
    with pytest.raises(UserError, match=f"{system}: optim.lr: 0.5 there, "):
        reproduce(tmp_path, sets, "raw")


def test_scores_equal_those_of_the_outputs(everything: Path, sets: Path) -> None:
    folder = study_of(everything, sets).folder
    references = lines_of(sets / DATASET / "test.de")[:10]
    for system in ("teacher", "cmlm", "oaxe"):
        output = lines_of(folder.output(system, 1, "test"))
        score = sacrebleu.corpus_bleu(output, [references]).score
        assert value(everything, "main", system, "BLEU") == pytest.approx(score)
        assert (
            cells(everything, "main", EXPERIMENTS[system].label)[f"{DATASET}: BLEU"]
            == f"{score:.1f}"
        )
    entries = [json.loads(line) for line in lines_of(sets / DATASET / "multiref.jsonl")][:10]
    streams = [[entry["refs"][k] for entry in entries] for k in (0, 1)]
    for system in ("cmlm-raw", "oaxe-raw", "cmlm", "oaxe"):
        output = lines_of(folder.output(system, 1, "multiref"))
        both = sacrebleu.corpus_bleu(output, streams).score
        one = sacrebleu.corpus_bleu(output, streams[:1]).score
        assert value(everything, "multiref", system, "multiple", "multiref") == pytest.approx(both)
        assert value(everything, "multiref", system, "single", "multiref") == pytest.approx(one)
    words = [line.split() for line in references]
    repeated = sum(a == b for line in words for a, b in pairwise(line))
    percent = 100 * repeated / sum(map(len, words))
    assert value(everything, "repetition", "gold", "repeated, %") == pytest.approx(percent)


def test_signatures_belong_to_the_numbers_shown(everything: Path) -> None:
    for row in rows_of(everything, "multiref"):
        if row["by"] == "us":
            n_references = {"single": 1, "multiple": 2}[row["column"]]
            assert row["signature"].startswith(f"nrefs:{n_references}|")
    text = (everything / "multiref.md").read_text()
    assert "nrefs:2" in text
    assert "nrefs:1" not in text
    assert "nrefs:2" not in (everything / "main.md").read_text()


def test_ablations_show_validation_bleu(everything: Path, sets: Path) -> None:
    folder = study_of(everything, sets).folder
    for table, column, system in (
        ("init", "neither", "oaxe-scratch"),
        ("truncation", "BLEU", "oaxe-truncation-0.30"),
        ("pretraining", "XE alone", "cmlm-10-percent"),
        ("masking", "BLEU", "oaxe-partial-masks"),
    ):
        run_result = json.loads((folder.run(system, 1) / "result.json").read_text())
        assert value(everything, table, system, column, "valid") == run_result["bleu"]


def test_shows_the_papers_numbers_beside_ours(everything: Path) -> None:
    main = cells(everything, "main", "CMLM + OaXE")
    assert main["paper, wmt14-en-de: BLEU"] == "26.1"
    assert main["paper, wmt17-zh-en: BLEU"] == "22.1"
    assert cells(everything, "main", "CMLM")["paper, wmt16-ro-en: BLEU"] == "28.6"
    assert cells(everything, "main", "Imputer")["paper, wmt14-en-de: BLEU"] == "25.8"
    assert cells(everything, "raw", "CMLM + AXE")["paper, wmt14-de-en: BLEU"] == "24.9"
    init = cells(everything, "init", "AXE")
    assert init["paper, wmt14-en-de: XE annealing"] == "23.1"
    assert init["paper, wmt14-de-en: XE pre-training"] == "28.1"
    assert cells(everything, "truncation", "0.15")["paper, wmt14-en-de: BLEU"] == "24.1"
    assert cells(everything, "pretraining", "3 %")["paper, wmt14-en-de: then OaXE"] == "18.5"
    masking = cells(everything, "masking", "partially observed, only masks")
    assert masking["paper, wmt14-de-en: BLEU"] == "29.0"
    several = cells(everything, "multiref", "CMLM + OaXE", 1)
    assert several["paper, wmt14-en-de: multiple"] == "68.0"
    assert several["paper, wmt14-en-de: Δ multiple"] == "+17.3"
    assert cells(everything, "divergent", "CMLM + OaXE")["paper, wat17-ja-en: BLEU"] == "28.4"
    repeated = "paper, wmt14-en-de: repeated, %"
    assert cells(everything, "repetition", "CMLM")[repeated] == "22.80"
    assert cells(everything, "repetition", "CMLM", 1)[repeated] == "16.72"
    assert cells(everything, "ncm", "CMLM + OaXE", 1)["paper, wmt14-de-en: NCM"] == "0.19"
    gold = cells(everything, "fluency", "Gold test set")
    assert gold["paper, wmt14-de-en: perplexity"] == "43.8"
    assert "1.36" in (everything / "speed.md").read_text()


def test_second_run_does_nothing(everything: Path, sets: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in everything.rglob("res*/**/*.*")}
    names = [name for name in NAMES if name != "divergent"]
    text = (everything / "main.md").read_text()
    assert "done:" not in reproduce(everything, sets, *names)
    assert len(before) > 3 * len({name for table in FEWER.values() for name in table.experiments})
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert text == (everything / "main.md").read_text()


def test_results_without_runs_and_data_give_the_same_tables(
    everything: Path, tmp_path: Path
) -> None:
    """No runs, no data: what was copied from another machine makes the same tables."""
    results = Path(DATASET) / "tiny/results"
    shutil.copytree(everything / results, tmp_path / results)
    names = [name for name in NAMES if name != "divergent"]
    nowhere = tmp_path / "no data sets here"
    assert "done:" not in reproduce(tmp_path, nowhere, *names)
    for name in names:
        assert (tmp_path / f"{name}.md").read_text() == (everything / f"{name}.md").read_text()


def jobs_of(out: Path, sets: Path, *names: str) -> set[str]:
    made = plan(study_of(out, sets), names, 1, 1)
    for job in made.jobs.values():
        assert job.needs <= made.jobs.keys()
    return {name.rsplit("/", 1)[1] for name in made.jobs}


def test_plans_only_what_is_needed(everything: Path, sets: Path, tmp_path: Path) -> None:
    assert jobs_of(everything, sets, *NAMES) == set()
    results, text = Path(DATASET) / "tiny/results", Path(DATASET) / "tiny/teacher-text"
    names = (
        *("cmlm", "flowseq", "imputer", "glat", "ctc", "crf", "ngrams"),
        *("xe", "xe-unobserved", "odd", "axe", "oaxe"),
        *("mask-predict", "lanmt", "lanmt-refined", "dslp"),
    )
    nats = {f"{name}-seed-1" for name in names}
    made = {"data", "distilled-data", "teacher-text", "judged-text", "em-data"}
    made |= {f"{kind}{n}{end}" for n in (2, 3) for kind, end in OTHER_TEACHERS}
    assert jobs_of(tmp_path, sets, "main") == nats | made | {
        f"{n}-seed-1" for n in ("teacher", "at-distilled", "hint", "em", "ddrs")
    }
    on_raw = {f"{n[:-7]}-raw" for n in nats} - LEFT_OUT
    assert jobs_of(tmp_path, sets, "raw") == {f"{n}-seed-1" for n in on_raw} | {"data"}
    shutil.copytree(everything / text, tmp_path / text)
    needed = jobs_of(tmp_path, sets, "cases")  # the teacher's text is there: no teacher
    assert needed == {"data", "distilled-data", "cmlm-seed-1", "oaxe-seed-1"}
    shutil.copytree(everything / results, tmp_path / results)
    shutil.rmtree(tmp_path / results / "oaxe-seed-1")
    needed = jobs_of(tmp_path, sets, "main")  # OaXE starts from a run that is gone
    assert needed == {"data", "distilled-data", "cmlm-seed-1", "oaxe-seed-1"}
    (tmp_path / results / "speed-cpu.json").unlink()
    assert "at-12-1-seed-1" in jobs_of(tmp_path, sets, "speed")


def test_what_is_to_be_timed_is_trained(sets: Path, tmp_path: Path) -> None:
    """Its results are there and its run is not; of some systems the latency is known."""
    folder = study_of(tmp_path, sets).folder
    for name in TABLES["latency"].experiments:
        write_json(folder.result(name, 1), {})
    known = {"device": usable_device(None), "systems": {"teacher-seed-1": {}, "dag-seed-1": {}}}
    write_json(folder.results / LATENCIES, known)
    needed = jobs_of(tmp_path, sets, "latency")
    assert {"teacher-seed-1", "oaxe-seed-1", "ctc-glat-seed-1"} <= needed  # greedy is not known
    all_known: dict[str, Any] = {f"{name}-seed-1": {} for name in TABLES["latency"].experiments}
    write_json(folder.results / LATENCIES, known | {"systems": all_known})
    assert jobs_of(tmp_path, sets, "latency") == set()
    write_json(folder.results / LATENCIES, known | {"device": "another"})
    assert jobs_of(tmp_path, sets, "latency") == set()


def test_rows_can_be_trained_alone(sets: Path, tmp_path: Path) -> None:
    study = study_of(tmp_path, sets)

    def jobs(table: str, seeds: int, *rows: str) -> set[str]:
        found = plan(study, [table], seeds, 1, rows).jobs
        return {name.rsplit("/", 1)[1] for name in found}

    assert jobs("raw", 2, "oaxe-raw") == {"data"} | {
        f"{name}-raw-seed-{seed}" for name in ("cmlm", "oaxe") for seed in (1, 2)
    }
    trained = {name for name in jobs("equal", 1, "equal-axe") if name.startswith("equal")}
    deltas = {f"equal-axe-delta-{delta}-seed-1" for delta in (1, 2, 5)}
    assert trained == deltas | {"equal-cmlm-seed-1"}
    one = jobs("equal-raw", 2, "equal-ctc-upsample-3-raw")
    assert one == {"data", "teacher-seed-1"} | {
        f"equal-ctc-upsample-3-raw-seed-{seed}" for seed in (1, 2)
    }
    with pytest.raises(
        UserError, match=r"there is no row oaxee; there are at-distilled, axe, cmlm"
    ):
        reproduce(tmp_path, sets, "main", rows=["oaxee"])


def test_table_without_test_sets(everything: Path, sets: Path, tmp_path: Path) -> None:
    """No data, no runs, no test sets: as they are published."""
    results = Path(DATASET) / "tiny/results"
    shutil.copytree(everything / results, tmp_path / results, ignore=lambda *_: {"gold"})
    reproduce(tmp_path, sets, "main")
    assert (tmp_path / "main.md").read_text() == (everything / "main.md").read_text()


def test_no_train_leaves_missing_rows_blank(everything: Path, sets: Path, tmp_path: Path) -> None:
    results = Path(DATASET) / "tiny/results"
    shutil.copytree(everything / results, tmp_path / results)
    shutil.rmtree(tmp_path / results / "oaxe-truncation-0.25-seed-1")
    printed = reproduce(tmp_path, sets, "truncation", train=False)
    assert f"not there, and made if --no-train is left out: {DATASET}/tiny/" in printed
    assert f"{DATASET}/tiny/oaxe-truncation-0.25-seed-1" in printed
    before, after = ((o / "truncation.md").read_text() for o in (everything, tmp_path))
    new = {*after.splitlines()} - {*before.splitlines()}
    assert [line.split(" | ")[:2] for line in new] == [["| 0.25", "-"]]
    assert not (tmp_path / DATASET / "tiny/runs").exists()


def test_start_that_is_trained_again_keeps_its_result(
    everything: Path, sets: Path, tmp_path: Path
) -> None:
    results = Path(DATASET) / "tiny/results"
    shutil.copytree(everything / results, tmp_path / results)
    kept = (tmp_path / results / "cmlm-raw-seed-1/result.json").stat().st_mtime_ns
    shutil.rmtree(tmp_path / results / "oaxe-raw-seed-1")
    printed = reproduce(tmp_path, sets, "raw")
    assert printed.count("done:") == 3
    assert kept == (tmp_path / results / "cmlm-raw-seed-1/result.json").stat().st_mtime_ns
    assert (tmp_path / results / "cmlm-raw-again-seed-1/result.json").exists()
    again, before = (
        json.loads((out / results / "oaxe-raw-seed-1/result.json").read_text())
        for out in (tmp_path, everything)
    )
    # The same weights, from a start that was trained a second time.
    assert again["tests"]["test"]["model"]["crc32"] == before["tests"]["test"]["model"]["crc32"]


def test_means_and_p_values_of_several_seeds(everything: Path, sets: Path, tmp_path: Path) -> None:
    """A second seed whose scores we choose."""
    results = Path(DATASET) / "tiny/results"
    shutil.copytree(everything / results, tmp_path / results)
    scores: dict[str, list[float]] = {}
    for name in TABLES["raw"].experiments:
        first, second = (tmp_path / results / f"{name}-seed-{seed}" for seed in (1, 2))
        shutil.copytree(first, second)
        result = json.loads((first / "result.json").read_text())
        scores[name] = [result["tests"]["test"]["bleu"]["score"], 50.0]
        result["tests"]["test"]["bleu"]["score"] = 50.0
        settings = result["settings"]["train"]
        start = settings["init_from"] and settings["init_from"].replace("-seed-1", "-seed-2")
        settings |= {"seed": 2, "init_from": start}
        (second / "result.json").write_text(json.dumps(result))
    # With the first seed OaXE and XE are right; with the second the baseline is, OaXE says the same
    # and XE does not.
    gold = [json.loads(line) for line in (tmp_path / results / "gold/test.jsonl").open()]
    for right in ("oaxe-raw-seed-1", "xe-raw-seed-1", "cmlm-raw-seed-2", "oaxe-raw-seed-2"):
        text = "".join(f"{line['refs'][0]}\n" for line in gold)
        (tmp_path / results / right / "test.hyp.txt").write_text(text)
    for seeds, p in ((1, "0.0196"), (2, "1.0000")):  # 1 / 51: none of 50 trials is as good
        reproduce(tmp_path, sets, "raw", seeds=seeds)
        for name in ("oaxe-raw", "xe-raw"):
            assert cells(tmp_path, "raw", EXPERIMENTS[name].label)[f"{DATASET}: p"] == p
    for name, values in scores.items():
        shown = cells(tmp_path, "raw", EXPERIMENTS[name].label)[f"{DATASET}: BLEU"]
        assert shown == f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"


def test_rejects_unknown_names_and_other_settings(
    everything: Path, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=io.StringIO())
    options: dict[str, Any] = {"folder": sets, "out": tmp_path, "seeds": 1, "jobs": 1}
    with pytest.raises(UserError, match=r"there is no table nonsense; there are main, raw"):
        datasets_of(["main", "nonsense"], [])
    with pytest.raises(UserError, match="there is no data set 'nonsense'"):
        run({"main": ["nonsense"]}, preset="tiny", console=console, **options)
    with pytest.raises(UserError, match=r"the preset small has no recipe for wmt14-de-en.*paper"):
        run({"main": ["wmt14-de-en"]}, preset="small", console=console, **options)
    with pytest.raises(UserError, match="nothing that could be downloaded"):
        run({"main": ["multi30k-en-de"]}, preset="tiny", console=console, **options)
    assert not list(tmp_path.iterdir())  # nothing was begun
    monkeypatch.setitem(PRESETS["tiny"], ANY, replace(MICRO, finetune=replace(SHORT, lr=0.5)))
    with pytest.raises(UserError, match=r"(?s)oaxe-seed-1: optim.lr: 0.002 there, 0.5 here.*--out"):
        reproduce(everything, sets, "main")


def test_adds_test_sets_of_other_domains(sets: Path, tmp_path: Path) -> None:
    """Other references and other domains, where they are in the folder and go with the model."""
    here = shutil.copytree(sets, tmp_path / "sets")
    text = {"en": ["the red dog", "not here"], "de": ["das rot hund", "hier nicht"]}
    files = {
        "ott2018-en-de": {"src.en": text["en"]} | {f"ref{k}.de": text["de"] for k in range(11)},
        "newstest-en-de": {f"newstest{y}.{c}": text[c] for y in (2013, 2014) for c in text},
    }
    for folder_name, contents in files.items():
        (here / folder_name).mkdir()
        for name, lines in contents.items():
            (here / folder_name / name).write_text("".join(f"{line}\n" for line in lines))
    shutil.copytree(here / DATASET, here / "europarl-en-de")
    studies = {
        dataset: study_of(tmp_path, here, dataset)
        for dataset in (DATASET, "tatoeba-de-en", "europarl-en-de", "europarl-de-en")
    }
    found = {}
    for dataset, study in studies.items():
        prepare_raw(study, Console(file=io.StringIO()))
        found[dataset] = study.folder.tests()
        lines = lines_of(study.folder.gold / f"{found[dataset][-1]}.jsonl")
        assert all(entry["src"] and entry["refs"] for entry in map(json.loads, lines))
    assert found == {
        DATASET: ["test", "multiref", "ott2018"],
        "tatoeba-de-en": ["test"],
        "europarl-en-de": ["test", "newstest2014", "ott2018"],
        "europarl-de-en": ["test", "newstest2014"],
    }
    folder = studies["europarl-de-en"].folder
    entry = json.loads(lines_of(folder.gold / "newstest2014.jsonl")[0])
    assert entry == {"src": "das rot hund", "refs": ["the red dog"]}
    ott = json.loads(lines_of(studies[DATASET].folder.gold / "ott2018.jsonl")[0])
    assert len(ott["refs"]) == 11
    away = EvalSet(Results(folder, 1), "newstest2014").label
    assert away == "europarl-de-en on newstest2014, out of domain"
    wmt = replace(folder, dataset="wmt14-en-de")
    assert EvalSet(Results(wmt, 1), "ott2018").label == "wmt14-en-de on ott2018"


def test_new_system_takes_two_entries(
    everything: Path, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the experiments and one in a table: trained, tested and shown."""
    monkeypatch.setitem(EXPERIMENTS, "mine", Experiment("Mine", "whole", system="ctc"))
    main = TABLES["main"]
    monkeypatch.setitem(
        TABLES, "main", replace(main, rows=(*main.rows, *rows("mine", baseline="cmlm")))
    )
    shutil.copytree(everything / DATASET, tmp_path / DATASET)
    study = study_of(tmp_path, sets)
    assert {*plan(study, ["main"], 1, 1).jobs} == {f"{DATASET}/tiny/mine-seed-1"}
    train_and_test(study, "mine", 1, 1, Console(file=io.StringIO()))
    reproduce(tmp_path, sets, "main")
    result = json.loads(study.folder.result("mine", 1).read_text())
    assert result["settings"]["model"]["system"] == "ctc"
    row = cells(tmp_path, "main", "Mine")
    assert row[f"{DATASET}: BLEU"] == f"{result['tests']['test']['bleu']['score']:.1f}"
    assert float(row[f"{DATASET}: p"]) <= 1


def test_validation_chooses_among_trials(
    everything: Path, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trials have one seed; further ones are trained of those that were chosen alone."""
    few = replace(TABLES["equal"], rows=(*rows("teacher"), *chosen("oaxe")))
    monkeypatch.setitem(TABLES, "equal", few)
    shutil.copytree(everything / DATASET, tmp_path / DATASET)
    trials = few.rows[1].experiments
    assert len(trials) == 3
    todo = jobs_of(tmp_path, sets, "equal")
    assert todo == {f"{name}-seed-1" for name in (*trials, "equal-cmlm")}
    folder = study_of(tmp_path, sets).folder
    reproduce(tmp_path, sets, "equal", rows=[trials[0]])
    assert "Trials of a system: 1 of 3." in (tmp_path / "equal.md").read_text()
    reproduce(tmp_path, sets, "equal")
    assert "Trials of a system: 3 of 3." in (tmp_path / "equal.md").read_text()
    results = {name: json.loads(folder.result(name, 1).read_text()) for name in trials}
    best = max(results, key=lambda name: results[name]["training"]["bleu"])
    shown = cells(tmp_path, "equal", few.rows[1].label)
    test = results[best]["tests"]["test"]
    assert shown[f"{DATASET}: BLEU"] == f"{test['bleu']['score']:.1f}"
    assert int(shown[f"{DATASET}: own lines of code"]) > 50
    assert float(shown[f"{DATASET}: one sentence, ms"]) > 0
    # Updates of 300 tokens: 3 of XE and 1 of OaXE.
    assert value(tmp_path, "equal", best, "million target tokens") == pytest.approx(1.2e-3)
    made = plan(study_of(tmp_path, sets), ["equal"], 2, 1)
    needed = {name.rsplit("/", 1)[1] for name in made.jobs}
    # The teacher's second seed is there.
    assert needed == {f"{name}-seed-2" for name in (best, "equal-cmlm")}


def test_changes_of_the_best_system_are_trained(
    everything: Path, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("best-slow", "best-penalty", "best-merged")
    few = replace(TABLES["best"], rows=(*rows("oaxe"), *rows(*names, baseline="oaxe")))
    monkeypatch.setitem(TABLES, "best", few)
    shutil.copytree(everything / DATASET, tmp_path / DATASET)
    reproduce(tmp_path, sets, "best", seeds=2)  # one is enough
    folder = study_of(tmp_path, sets).folder
    settings = {n: json.loads(folder.result(n, 1).read_text())["settings"] for n in names}
    assert settings["best-slow"]["train"]["steps"] == 10
    assert settings["best-slow"]["optim"]["lr"] == pytest.approx(5e-4)
    assert settings["best-slow"]["data"]["update_tokens"] == 600
    penalty = json.loads(folder.result("best-penalty", 1).read_text())
    assert len(penalty["training"]["decodings"]) > 3
    merged = json.loads(folder.result("best-merged", 1).read_text())
    assert merged["tests"]["test"]["model"]["decoding"]["score_merged"] is True
    assert not folder.result("best-slow", 2).exists()


def test_levers_of_one_system_are_trained(
    everything: Path, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("levers-no-ema", "levers-weak-decoder", "levers-coco", "levers-samples")
    few = replace(TABLES["levers"], rows=rows(*names, baseline=BASE))
    monkeypatch.setitem(TABLES, "levers", few)
    shutil.copytree(everything / DATASET, tmp_path / DATASET)
    assert jobs_of(tmp_path, sets, "levers") == {f"{name}-seed-1" for name in (BASE, *names)}
    reproduce(tmp_path, sets, "levers")
    folder = study_of(tmp_path, sets).folder
    results = {n: json.loads(folder.result(n, 1).read_text()) for n in (BASE, *names)}
    settings = {name: result["settings"] for name, result in results.items()}
    assert settings[BASE]["train"]["ema"] > settings["levers-no-ema"]["train"]["ema"] == 0
    assert settings["levers-weak-decoder"]["ctc_glat"]["weak_decoder"] == 0.5
    assert settings["levers-coco"]["ctc_glat"]["objective"]["name"] == "coco"
    assert results["levers-samples"]["tests"]["test"]["model"]["decoding"]["method"] == "samples"
    for name in names:
        assert float(cells(tmp_path, "levers", EXPERIMENTS[name].label)[f"{DATASET}: p"]) <= 1


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", ["main", "lengths", "cases"])
def test_pages_in_a_browser(name: str, width: int, everything: Path, tmp_path: Path) -> None:
    page = (everything / f"{name}.html").read_text(encoding="utf-8")
    found, console = browse(page, tmp_path, width)
    assert console == []
    assert found["scroll_width"] <= width
    assert found["tables"]
    assert all(0 <= left < right <= width for left, right in found["tables"])
    assert len(found["pictures"]) == page.count("<svg")
    assert all(height >= 9 for height in found["labels"])
