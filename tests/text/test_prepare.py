import errno
import gzip
import io
import itertools
import json
import lzma
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.support.errors import UserError
from oaxe.text import encode, lines
from oaxe.text import prepare as module
from oaxe.text.encode import NAMED_LINES
from oaxe.text.lines import read_lines
from oaxe.text.manifest import Manifest, read_manifest
from oaxe.text.prepare import prepare
from oaxe.text.subwords import Subwords
from tests.runs import FORKS

# Ligature, full width, combining mark, ideographic space: all change under NFKC.
WORDS = ["haus", "baum", "\ufb01sch", "\uff21pfel", "u\u0308ber", "katze", "東京\u3000駅", "\xbd"]
WORDS += ["don't", "naïve", "\u2460", "Straße"]


def text(n: int, seed: int, shortest: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(shortest, 9))) for _ in range(n)]


def write(path: Path, content: list[str]) -> Path:
    raw = "".join(f"{line}\n" for line in content).encode()
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    elif path.suffix == ".xz":
        raw = lzma.compress(raw)
    path.write_bytes(raw)
    return path


def nfkc(line: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", line).split())


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    return {
        "source_language": "aa",
        "target_language": "bb",
        "train": (write(tmp_path / "a.gz", text(300, 1)), write(tmp_path / "b.xz", text(300, 2))),
        "valid": (write(tmp_path / "va", text(20, 3)), write(tmp_path / "vb", text(20, 4))),
        "vocab_size": 80,
    }


def decoded(folder: Path, name: str) -> list[str]:
    tokens, offsets = (np.load(folder / f"{name}.{kind}.npy") for kind in ("tokens", "offsets"))
    assert offsets[0] == 0
    assert offsets[-1] == len(tokens)
    rows = [tokens[a:b].tolist() for a, b in pairwise(offsets)]
    return Subwords.load(folder / "subwords.model").decode(rows)


def test_the_arrays_decode_to_the_nfkc_of_every_line(tmp_path: Path, files: dict[str, Any]) -> None:
    manifest = prepare(tmp_path / "out", **files)
    assert decoded(tmp_path / "out", "train.source") == [*map(nfkc, text(300, 1))]
    assert decoded(tmp_path / "out", "train.target") == [*map(nfkc, text(300, 2))]
    assert decoded(tmp_path / "out", "valid.target") == [*map(nfkc, text(20, 4))]
    assert (tmp_path / "out/valid.target.txt").read_text().split("\n") == [*text(20, 4), ""]
    assert manifest == read_manifest(tmp_path / "out")
    split = manifest.splits["train"]
    assert (split.pairs, split.unknown, split.dropped) == (300, [0, 0], {})
    assert split.tokens[0] == len(np.load(tmp_path / "out/train.source.tokens.npy"))
    assert not (tmp_path / "out/.unfinished").exists()


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, files: dict[str, Any]) -> None:
    for name in ("one", "two"):
        prepare(tmp_path / name, deduplicate=True, **files)
    paths = sorted((tmp_path / "one").iterdir())
    assert len(paths) == 12
    for path in paths:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_result_does_not_depend_on_chunks(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = files | {"deduplicate": True, "max_ratio": 2, "max_length": 16}
    one = prepare(tmp_path / "one", **options)
    monkeypatch.setattr(lines, "CHUNK_PAIRS", 7)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 300)
    assert prepare(tmp_path / "two", **options) == one
    found = one.splits["train"].dropped
    assert found.keys() == {"source too long", "target too long", "ratio too high"}


def test_workers_write_the_same_bytes(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed text with blank, repeated, long and uneven pairs, in chunks of a few lines."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKS)
    monkeypatch.setattr(lines, "CHUNK_PAIRS", 7)
    source, target = text(200, 1), text(200, 2)
    source[3], target[77], source[199] = "", " \u3000", ""
    source[150:], target[150:] = source[:50], target[:50]
    files["train"] = write(tmp_path / "a.gz", source), write(tmp_path / "b.xz", target)
    options = files | {"deduplicate": True, "max_ratio": 2, "max_length": 16}
    folders = [tmp_path / str(workers) for workers in (1, 2, 3)]
    for workers, folder in enumerate(folders, 1):
        manifest = prepare(folder, **options, workers=workers)
    dropped = manifest.splits["train"].dropped
    expected = {"blank source", "blank target", "repeated", "source too long", "target too long"}
    assert dropped.keys() == expected | {"ratio too high"}
    assert dropped["repeated"].count > NAMED_LINES == len(dropped["repeated"].lines)
    names = sorted(path.name for path in folders[0].iterdir())
    assert len(names) == 12
    for name in names:
        assert len({(folder / name).read_bytes() for folder in folders}) == 1, name


def test_workers_and_what_ends_them(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad line, or a full disk, while they work: the ordinary error, and no process stays."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKS)
    monkeypatch.setattr(lines, "CHUNK_PAIRS", 7)
    with pytest.raises(UserError, match=r"bad, line 7 is not UTF-8"):
        prepare(tmp_path / "out", **files | {"train": broken(tmp_path, "encoding")}, workers=2)
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patch:
        patch.setattr(encode.GrowingArray, "append", full)
        with pytest.raises(OSError, match="No space left"):
            prepare(tmp_path / "out", **files, workers=2)
    assert not (tmp_path / "out").exists()
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_ctrl_c_with_workers(tmp_path: Path, files: dict[str, Any]) -> None:
    """As a terminal sends it, to all processes, while the workers start."""
    prepare(tmp_path / "model", **files)
    many = text(1000, 3, shortest=9) * 100
    pair = [str(write(tmp_path / name, many)) for name in ("c", "d")]
    command = [sys.executable, "-m", "oaxe", "prepare", str(tmp_path / "out"), "--workers", "2"]
    command += ["--from", "aa", "--to", "bb", "--subwords", str(tmp_path / "model/subwords.model")]
    command += ["--train", *pair]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # What a shell starts in the background, such as these tests, ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    of_all = Path("/proc") / str(process.pid) / "task" / str(process.pid) / "children"
    while process.poll() is None and len(of_all.read_text().split()) < 3:  # and Python's own one
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=20)[0].decode()  # also closed by the workers
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_every_drop_is_counted_and_named(tmp_path: Path, files: dict[str, Any]) -> None:
    source, target = text(40, 5, shortest=6), text(40, 5, shortest=6)
    source[3], target[4], source[5], target[5] = "", " \t\u3000", "", ""
    source[10], target[10] = "\uff21pfel", "katze"  # the same pair up to NFKC and spaces:
    source[20], target[20] = " Apfel ", "katze"
    source[30] = " ".join(["東京"] * 50)
    target[31] = "haus"
    files["train"] = write(tmp_path / "c", source), write(tmp_path / "d", target)
    files["valid"] = write(tmp_path / "e", source), write(tmp_path / "f", target)
    manifest = prepare(tmp_path / "out", **files, max_length=48, max_ratio=3.5, deduplicate=True)
    found = {k: (v.count, v.lines) for k, v in manifest.splits["train"].dropped.items()}
    assert found == {
        "blank source": (2, [4, 6]),
        "blank target": (1, [5]),
        "repeated": (1, [21]),
        "source too long": (1, [31]),
        "ratio too high": (1, [32]),
    }
    assert manifest.splits["train"].pairs == 40 - 6
    kept = [line for i, line in enumerate(source, 1) if i not in (4, 5, 6, 21, 31, 32)]
    assert decoded(tmp_path / "out", "train.source") == [*map(nfkc, kept)]
    # Valid and test lose blank pairs alone.
    assert set(manifest.splits["valid"].dropped) == {"blank source", "blank target"}
    assert manifest.splits["valid"].pairs == 37


def test_a_finished_folder_is_left_alone(tmp_path: Path, files: dict[str, Any]) -> None:
    out = tmp_path / "out"
    first = prepare(out, **files)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    console = Console(file=io.StringIO(), width=500)
    assert prepare(out, **files, console=console) == first
    assert "already prepared" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"vocab_size: 80 there, 70 here\n.*--overwrite"):
        prepare(out, **files | {"vocab_size": 70})
    assert before == {path: path.stat().st_mtime_ns for path in out.iterdir()}
    write(files["train"][0], text(300, 9))  # the same name, another content
    size = files["train"][0].stat().st_size
    message = rf"train\.source: [\d,]+ bytes with crc32 \w+ there, {size:,} bytes with .* here"
    with pytest.raises(UserError, match=message):
        prepare(out, **files)
    assert prepare(out, **files, overwrite=True) != first


def test_a_damaged_finished_folder_is_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    prepare(tmp_path / "out", **files)
    (tmp_path / "out/train.target.offsets.npy").unlink()
    with pytest.raises(UserError, match=r"train\.target\.offsets\.npy is missing"):
        prepare(tmp_path / "out", **files)


@pytest.mark.parametrize("finished_before", [False, True])
def test_an_interrupted_run_does_not_look_finished(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch, finished_before: bool
) -> None:
    out = tmp_path / "out"
    whole = prepare(tmp_path / "whole", **files, deduplicate=True)
    if finished_before:
        before = prepare(out, **files)
    for where in ("append", "close"):
        with monkeypatch.context() as patch:

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(encode.Side, where, interrupt)
            with pytest.raises(KeyboardInterrupt):
                prepare(out, **files, deduplicate=True, overwrite=True)
        if finished_before:
            assert prepare(out, **files) == before  # whole, by its checksums
        else:
            assert not out.exists()
    assert prepare(out, **files, deduplicate=True, overwrite=True) == whole
    assert sorted(p.name for p in out.iterdir()) == sorted([*whole.files, "manifest.json"])


def test_killed_while_replacing_a_folder(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first files: the next run, even one that fails, puts the others in place."""
    out = tmp_path / "out"
    prepare(out, **files)
    replace, calls = Path.replace, itertools.count(1)

    def killed(self: Path, target: Path) -> Path:
        if target.parent == out and next(calls) == 4:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(out, **files, deduplicate=True, overwrite=True)
    with pytest.raises(UserError, match="not finished"):
        read_manifest(out)
    with pytest.raises(UserError, match="was prepared from something else"):
        prepare(out, **files | {"valid": broken(tmp_path, "encoding")})
    after = prepare(tmp_path / "whole", **files, deduplicate=True)
    assert prepare(out, **files, deduplicate=True) == after  # verifies all files
    assert sorted(p.name for p in out.iterdir()) == sorted([*after.files, "manifest.json"])


def test_a_full_disk_leaves_the_old_folder(
    tmp_path: Path, files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the last byte of the new manifest does not fit."""
    out = tmp_path / "out"
    before = prepare(out, **files)
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    for where in ("write_json", "sync"):
        with monkeypatch.context() as patch:
            patch.setattr(module, where, full)
            with pytest.raises(OSError, match="No space left"):
                prepare(out, **files, deduplicate=True, overwrite=True)
        assert prepare(out, **files) == before


def test_warns_of_what_is_seldom_meant(tmp_path: Path, files: dict[str, Any]) -> None:
    printed = io.StringIO()
    source, _ = files["train"]
    changes = {"train": (source, source), "valid": (source, source), "target_language": "de"}
    console = Console(file=printed, width=500)
    prepare(tmp_path / "out", **files | changes | {"source_language": "de"}, console=console)
    assert [line for line in printed.getvalue().splitlines() if line.startswith("warning")] == [
        f"warning: --train: source and target are the same file, {source}",
        "warning: --valid is the training text: its scores will be far too good",
        f"warning: --valid: source and target are the same file, {source}",
        "warning: source and target language are both de",
    ]


def test_one_file_is_not_two(tmp_path: Path) -> None:
    given = [str(tmp_path / "out"), "--train", "a.en", "--from", "en", "--to", "de"]
    result = CliRunner().invoke(app, ["prepare", *given], env={"COLUMNS": "300"})
    assert result.exit_code == 2
    assert "two files are needed, source and target; got only a.en" in result.output


@pytest.mark.parametrize(("name", "compress"), [("a.txt", gzip.compress), ("a", lzma.compress)])
def test_compressed_text_without_its_ending(name: str, compress: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(compress(b"a dog\n" * 3))
    with pytest.raises(UserError, match=rf"{name} is compressed, .*: rename it to {name}\.(gz|xz)"):
        read_lines(path)


def test_an_existing_subword_model_is_used_unchanged(tmp_path: Path, files: dict[str, Any]) -> None:
    first = prepare(tmp_path / "raw", **files)
    model = tmp_path / "raw/subwords.model"
    files["train"] = (files["train"][0], write(tmp_path / "distilled", ["haus"] * 300))
    second = prepare(tmp_path / "distilled.out", **files | {"vocab_size": 9999}, subwords=model)
    assert second.vocab_size == first.vocab_size == 80
    assert (tmp_path / "distilled.out/subwords.model").read_bytes() == model.read_bytes()
    assert decoded(tmp_path / "distilled.out", "train.target") == ["haus"] * 300
    again = prepare(tmp_path / "raw", **files, subwords=model, overwrite=True)  # its own folder
    assert again.files["subwords.model"] == first.files["subwords.model"]


def test_the_sample_is_bounded_uniform_and_repeatable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE_PAIRS", 50)
    pair = (
        write(tmp_path / "a", [f"s{i}" for i in range(1000)]),
        write(tmp_path / "b", [f"t{i}" for i in range(1000)]),
    )
    samples = [module.scan(pair, None, seed, lambda _: None) for seed in (1, 1, *range(2, 80))]
    assert samples[0] == samples[1] != samples[2]
    for sample in samples:
        assert len(sample) == 100
        assert [x[1:] for x in sample[::2]] == [x[1:] for x in sample[1::2]]
    mean = np.mean([int(x[1:]) for sample in samples for x in sample])
    assert abs(mean - 499.5) < 4 * 289 / np.sqrt(80 * 50)  # 4 standard errors


@pytest.mark.parametrize("vocab_size", [32_000, 12])
def test_an_impossible_vocabulary_size_names_one_that_works(
    tmp_path: Path, files: dict[str, Any], vocab_size: int
) -> None:
    with pytest.raises(UserError, match="set the vocabulary size to") as caught:
        prepare(tmp_path / "out", **files | {"vocab_size": vocab_size})
    named = int(re.findall(r"size to (\d+)", str(caught.value))[0])
    assert prepare(tmp_path / "out", **files | {"vocab_size": named}).vocab_size == named


def broken(tmp_path: Path, case: str) -> tuple[Path, Path]:
    good = write(tmp_path / "good", text(30, 1))
    bad = tmp_path / "bad"
    content = good.read_bytes().split(b"\n")
    if case == "longer":
        bad.write_bytes(b"\n".join([b"one more", *content]))
    elif case.startswith("blank end"):
        bad.write_bytes(good.read_bytes() + b" \n\n"[-int(case[-1]) :])
    elif "old Mac" in case:
        bad.write_bytes(b"\r".join(content * (10_000 if case == "long old Mac" else 1)))
        return (bad, bad) if case == "old Macs" else (good, bad)
    elif case == "shorter":
        return write(bad, text(29, 1)), good
    elif case == "encoding":
        content[6] = "Straße".encode("latin-1")
        bad.write_bytes(b"\n".join(content))
    elif case == "long line":
        content[2] = b"x" * (lines.LINE_LIMIT + 1)
        bad.write_bytes(b"\n".join(content))
    elif case == "empty":
        bad.touch()
        return bad, bad
    elif case == "one empty":
        bad.touch()
    elif case == "blank":
        write(bad, [" "] * 30)
    elif case == "folder":
        bad.mkdir()
    elif case == "cut off":
        bad = tmp_path / "bad.gz"
        bad.write_bytes(gzip.compress(good.read_bytes())[:-20])
    elif case == "not compressed":
        bad = good.rename(tmp_path / "bad.xz")
        return bad, bad
    return good, bad


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("longer", r"good has 30 lines, .*bad has 31"),
        ("shorter", r"bad has 29 lines, .*good has 30"),
        ("blank end 1", r"bad has 31; the last line of .*bad is blank: remove it"),
        ("blank end 3", r"bad has 32; the last 2 lines of .*bad are blank: remove them"),
        ("old Mac", r"bad has only one line, with carriage returns inside.*tr '\\r' '\\n'"),
        ("old Macs", r"bad has only one line, with carriage returns inside"),
        ("long old Mac", r"bad has only one line, with carriage returns inside"),
        ("encoding", r"bad, line 7 is not UTF-8: byte 0xdf at position 4"),
        ("long line", r"bad, line 3 is longer than 1,048,576 bytes"),
        ("empty", r"bad and .*bad are empty"),
        ("one empty", r"good has 30 lines, .*bad has 0"),
        ("blank", r"no pair of .*good and .*bad is left: 30 blank target \(line 1, 2, .*\.\.\.\)"),
        ("missing", r"cannot read .*bad: No such file"),
        ("folder", r"cannot read .*bad: Is a directory"),
        ("cut off", r"bad\.gz cannot be read after line"),
        ("not compressed", r"bad\.xz cannot be read after line 0"),
    ],
)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_unusable_files_are_named(
    tmp_path: Path, files: dict[str, Any], case: str, message: str, split: str
) -> None:
    files[split] = broken(tmp_path, case)
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "out", **files)
    assert not (tmp_path / "out/manifest.json").exists()


def test_rejects_all_impossible_options_at_once(tmp_path: Path, files: dict[str, Any]) -> None:
    (tmp_path / "file").touch()
    options = files | {"vocab_size": 7, "max_length": 0, "max_ratio": 0.5, "workers": 0}
    message = r"is a file.*size is 7.*limit is 0.*ratio limit is 0\.5.*workers is 0.*\[1, 60\]"
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "file", **options)


def test_inputs_are_never_overwritten(tmp_path: Path, files: dict[str, Any]) -> None:
    files["valid"] = write(tmp_path / "valid.source.txt", ["a"]), files["valid"][1]
    with pytest.raises(UserError, match=r"valid\.source\.txt would be overwritten"):
        prepare(tmp_path, **files)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "foreign",
    [
        {"valid.source.txt": "mine\n"},
        {"subwords.model": "mine", "test.target.txt": "mine\n"},
        {"manifest.json": '{"format": "oaxe distillation 1"}', "subwords.model": "the teacher's"},
        {"manifest.json": '{"name": "a web page"}'},
    ],
)
def test_foreign_files_are_never_overwritten(
    tmp_path: Path, files: dict[str, Any], foreign: dict[str, str], overwrite: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, content in foreign.items():
        (out / name).write_text(content)
    names = " and ".join(sorted(foreign))
    with pytest.raises(UserError, match=f"out has {names} already, not from 'oaxe prepare'"):
        prepare(out, **files, overwrite=overwrite)
    assert {path.name: path.read_text() for path in out.iterdir()} == foreign


def test_unrelated_files_in_the_folder_stay(tmp_path: Path, files: dict[str, Any]) -> None:
    whole = prepare(tmp_path, **files)  # where its inputs are
    (tmp_path / ".unfinished").mkdir()  # killed as it tidied up
    assert prepare(tmp_path, **files) == whole
    assert not (tmp_path / ".unfinished").exists()
    assert files["train"][0].exists()


@pytest.mark.parametrize(
    ("languages", "names", "message"),
    [
        (("aa", "english"), ("a", "b"), "'english' is no code .* x-name"),
        (
            ("aa", "bb"),
            ("train.bb.gz", "train.aa.gz"),
            r"--valid .*bb\.gz .* swapped.* in aa, comes",
        ),
        (("aa", "bb"), ("dev-bb.txt", "aa.txt"), "--valid .* swapped"),
    ],
)
def test_rejects_invalid_codes_and_swapped_files(
    languages: tuple[str, str], names: tuple[str, str], message: str,
    tmp_path: Path, files: dict[str, Any],
) -> None:  # fmt: skip
    left, right = (write(tmp_path / name, text(5, 9)) for name in names)
    files |= dict(zip(("source_language", "target_language"), languages, strict=True))
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "out", **files | {"valid": (left, right)})
    assert not (tmp_path / "out").exists()
    right_way = {"source_language": "aa", "target_language": "bb", "valid": (right, left)}
    prepare(tmp_path / "out", **files | right_way)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 2}', '{"format": 1}'])
def test_rejects_damaged_manifests(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match="prepare"):
        read_manifest(tmp_path)


def test_summary_and_progress_bar(tmp_path: Path, files: dict[str, Any]) -> None:
    plain, terminal = (
        Console(file=io.StringIO(), width=200, force_terminal=on, highlight=False)
        for on in (False, True)
    )
    for name, console in (("one", plain), ("two", terminal)):
        manifest: Manifest = prepare(tmp_path / name, **files, console=console)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert "train: 300 pairs" in shown
        assert ("encoding train" in shown) == (console is terminal)
        assert json.loads((tmp_path / name / "manifest.json").read_text())["vocab_size"] == 80
    assert manifest.splits["valid"].pairs == 20
