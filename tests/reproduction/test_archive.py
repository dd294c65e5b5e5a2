"""Published results: the archives, what they hold, and the tables that --no-train makes of them."""

import io
import lzma
import re
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from oaxe.support.errors import UserError
from reproduction import archive
from reproduction.experiment import AGAIN
from reproduction.folder import Folder, read_json, write_json
from reproduction.former_settings import under_present_names
from reproduction.layouts.latency import latency
from reproduction.recipes import recipe_of
from reproduction.results import LATENCIES, Results
from reproduction.steps import Study
from reproduction.tables import TABLES
from reproduction.translation import run

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/results/translation"
DATASETS = ("europarl-en-de", "multi30k-en-de", "tatoeba-en-de", "tatoeba-ja-en")


def new_console() -> Console:
    return Console(file=io.StringIO())


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published")
    for dataset in DATASETS:
        archive.unpack(out, dataset, "small", new_console())
    return out


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_no_train_rewrites_published_table(page: Path, unpacked: Path) -> None:
    """Byte for byte, by the command that the page names."""
    text = page.read_text(encoding="utf-8")
    found = re.search(
        r"^python -m reproduction (\S+)((?: --data \S+)+) --preset (\w+) --seeds (\d)$", text, re.M
    )
    assert found is not None
    name, data, preset, seeds = found.groups()
    run(
        {name: data.split()[1::2]},
        folder=unpacked / "nothing here",
        out=unpacked,
        preset=preset,
        seeds=int(seeds),
        jobs=1,
        train=False,
        console=new_console(),
    )
    for kind in (".md", ".csv"):
        published = page.with_suffix(kind)
        assert (unpacked / published.name).read_bytes() == published.read_bytes()


def test_a_preset_without_results_is_named(tmp_path: Path) -> None:
    for preset, said in ("tiny", "no published results of tatoeba-ja-en"), ("small", "unpacked"):
        printed = io.StringIO()
        archive.unpack(tmp_path / preset, "tatoeba-ja-en", preset, Console(file=printed, width=999))
        assert said in printed.getvalue()


def test_quality_is_drawn_against_latency(tmp_path: Path) -> None:
    """Published BLEU and made-up latencies; the decoders of a family in the order of these."""
    archive.unpack(tmp_path, "tatoeba-en-de", "small", new_console())
    folder = Folder(tmp_path, "tatoeba-en-de", "small")
    took = {"teacher": 90.0, "teacher-greedy": 40.0, "oaxe": 5.0}
    speeds = {
        f"{name}-seed-1": {"latency_ms": {"median": ms}, "sentences_per_second": 3e3 / ms}
        for name, ms in took.items()
    }
    write_json(folder.results / LATENCIES, {"systems": speeds})
    report = latency("latency", TABLES["latency"], [Results(folder, 1)])
    bleu = {n: read_json(folder.result(n, 1))["tests"]["test"]["bleu"]["score"] for n in took}
    ((dataset, figure),) = report.charts
    assert dataset == "tatoeba-en-de"
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    drawn = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    assert drawn == {
        "Transformer": [[40.0, bleu["teacher-greedy"]], [90.0, bleu["teacher"]]],
        "CMLM + OaXE": [[5.0, bleu["oaxe"]]],
    }
    (table,) = report.tables
    shown = {row[0]: row[-2:] for row in table.rows}
    assert shown["Transformer"] == ["90.0", "33"]
    assert shown["CMLM + OaXE"] == ["5.0", "600"]
    assert shown["DAG"] == ["-", "-"]


def test_published_results_have_the_settings_of_the_recipes(unpacked: Path) -> None:
    paths = sorted(unpacked.glob("*/*/results/*/result.json"))
    assert len(paths) == 226
    for path in paths:
        result, preset = read_json(path), path.parents[2].name
        folder = Folder(unpacked, result["dataset"], preset)
        study = Study(folder, recipe_of(preset, folder.dataset), unpacked)
        name = result.get("experiment") or result["system"]
        assert folder.result(name, result["seed"]) == path
        wanted = partial(study.settings, name.removesuffix(AGAIN), result["seed"])
        assert folder.differences(name, result["seed"], wanted) == []


def test_no_published_value_is_lost_under_present_names(unpacked: Path) -> None:
    """Of the systems' own options; what had no effect is left out."""
    all_settings = [
        read_json(path)["settings"] for path in sorted(unpacked.glob("*/*/results/*/result.json"))
    ]
    former = [settings for settings in all_settings if "loss" in settings]
    assert len(former) >= 124
    for settings in former:
        now, loss = under_present_names(settings), settings["loss"]
        options = now[now["model"]["system"]]
        assert options["label_smoothing"] == loss["label_smoothing"]
        if settings["model"]["kind"] == "nat":
            assert options["loss"]["name"] == loss["name"]
            for name in {"oaxe": ["truncation"], "axe": ["delta"], "xe": []}[loss["name"]]:
                assert options["loss"][name] == loss[name]
            for name in ("inputs", "length_weight", "annealing", "annealing_c"):
                assert options[name] == loss[name]
            assert now["decoding"]["length_candidates"] == 5
            assert settings["validation"]["deduplicate"] is True
            assert now["decoding"]["repeats"] == "merge"
        assert under_present_names(now) == now


def test_archives_name_their_files(unpacked: Path) -> None:
    number = 0
    for dataset in DATASETS:
        with tarfile.open(archive.archive_path(dataset)) as tar:
            for entry in tar:
                assert entry.isfile()
                assert entry.name.startswith(f"{dataset}/")
                assert (entry.mtime, entry.uid, entry.gid, entry.uname) == (0, 0, 0, "")
                assert (unpacked / entry.name).stat().st_size == entry.size
                number += 1
    assert number == 703


def make_results(out: Path, dataset: str = "tatoeba-en-de") -> Folder:
    folder = Folder(out, dataset, "small")
    files = {
        folder.result("oaxe", 1): "{}\n",
        folder.output("oaxe", 1, "test"): "ein Hund\n",
        folder.output("cmlm", 1, "test"): "ein ein Hund\n",
        folder.gold / "test.jsonl": "{}\n",
        folder.run("oaxe", 1) / "model/weights": "many",
        folder.log("oaxe"): "much",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_pack_and_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PUBLISHED", tmp_path / "published")
    folder = make_results(tmp_path / "one")
    path = archive.pack(folder.out, folder.dataset)
    first = path.read_bytes()
    with tarfile.open(path) as tar:
        names = [Path(name).relative_to("tatoeba-en-de/small/results") for name in tar.getnames()]
    # No runs, logs or test sets; outputs on the same test set next to each other.
    assert [str(name) for name in names] == [
        "oaxe-seed-1/result.json",
        "cmlm-seed-1/test.hyp.txt",
        "oaxe-seed-1/test.hyp.txt",
    ]
    archive.pack(make_results(tmp_path / "two").out, folder.dataset)
    assert path.read_bytes() == first
    new = Folder(tmp_path / "new", folder.dataset, "small")
    archive.unpack(new.out, new.dataset, "small", new_console())
    assert new.output("cmlm", 1, "test").read_text() == "ein ein Hund\n"
    assert [child.name for child in new.out.iterdir()] == [new.dataset]
    new.result("oaxe", 1).unlink()  # what is there already is left as it is
    archive.unpack(new.out, new.dataset, "small", new_console())
    assert not new.result("oaxe", 1).exists()
    with pytest.raises(UserError, match=r"1 files that are not in .*oaxe-seed-1/result.json"):
        archive.pack(new.out, new.dataset)
    assert path.read_bytes() == first
    with pytest.raises(UserError, match="holds no results"):
        archive.pack(new.out, "multi30k-en-de")


def test_damaged_archive_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PUBLISHED", tmp_path / "published")
    folder = make_results(tmp_path / "one")
    path = archive.pack(folder.out, folder.dataset)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"nonsense", lzma.compress(b"nonsense" * 100)):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged"):
            archive.unpack(tmp_path / "new", folder.dataset, "small", new_console())
        assert list((tmp_path / "new").iterdir()) == []
