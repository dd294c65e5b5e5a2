"""Distillation: the translations line by line, with any number of processes and interruptions."""

import errno
import io
import itertools
import json
import lzma
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sacrebleu
import torch
from rich.console import Console
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.decoding.translator import Translator
from oaxe.distillation import shards as shards_module
from oaxe.distillation.distill import distill, training_source
from oaxe.distillation.shards import Shards, shard_size
from oaxe.support.checksums import checksum
from oaxe.support.errors import UserError
from oaxe.systems import System
from oaxe.text.manifest import read_manifest
from oaxe.text.subwords import train_subwords
from oaxe.text.symbols import EOS, LENGTH, MASK
from oaxe.training.ranks import Ranks
from tests.cli import printed
from tests.models import emphasise, micro
from tests.runs import (
    FORKS,
    dying_at_sync,
    end_despite_kills,
    free_port,
    make_data,
    settings_of,
    train_small,
)

ok = partial(printed, app)
WORDS = ["the", "a", "dog", "man", "boat", "red", "old", "green", "runs", "over", "near", "rain"]


def text(lines: int, longest: int = 9) -> list[str]:
    rng = random.Random(lines)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(lines)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights: its translations need not make sense."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(1)
    subwords = train_subwords(text(50), folder / "learned.model", 60)
    for name in ("transformer", "cmlm"):
        translator = Translator(random_model(name), subwords, languages=("en", "xx"))
        translator.save_pretrained(folder / name)
    return folder / "transformer"


def random_model(name: str) -> System:
    """Its translations differ, in words and in length."""
    return emphasise(micro(name, "pre", vocab_size=60, max_length=30), EOS, factor=1.5)


@pytest.fixture(autouse=True)
def small_shards() -> Iterator[None]:
    with mock.patch.object(shards_module, "FEWEST", 7):
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """With blank lines, one too long for the teacher, and one with other "line ends" in it."""
    lines = text(60)
    lines[3], lines[20], lines[30], lines[40] = "", "  ", " ".join(WORDS * 4), "a\u2028dog\rruns"
    path = tmp_path / "train.en.xz"
    path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


def run(out: Path, teacher: Path, source: Path, **options: Any) -> str:
    """Returns what was printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=500)
    assert distill(
        out, teacher=str(teacher), source=source, device="cpu", console=console, **options
    )
    return printed.getvalue()


def lines_of(path: Path) -> list[str]:
    *lines, rest = path.read_bytes().decode().split("\n")
    assert rest == ""
    return lines


def files(out: Path) -> dict[str, bytes]:
    """All but what depends on time."""
    found = {path.name: path.read_bytes() for path in out.iterdir() if path.name != ".lock"}
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["starts"]
    return found | {"manifest": json.dumps(manifest).encode()}


@pytest.mark.filterwarnings("ignore:cut after")
def test_equals_the_translator_line_by_line(teacher: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    valid = tmp_path / "valid.en", tmp_path / "valid.xx"
    for path in valid:
        path.write_text("".join(f"{line}\n" for line in text(12)))
    printed = run(out, teacher, source, beam=3, length_penalty=0.7, valid=valid)
    sources = lzma.decompress(source.read_bytes()).decode().split("\n")[:-1]
    assert lines_of(out / "train.en") == sources
    translator = Translator.from_pretrained(teacher)
    how: dict[str, Any] = {"beam": 3, "length_penalty": 0.7}
    assert lines_of(out / "train.xx") == [translator.translate([s], **how)[0] for s in sources]
    assert len({*lines_of(out / "train.xx")}) > 30

    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["counts"] == {"lines": 60, "blank": 2, "cut": 1, "blank translations": 2}
    assert "warning: 1 lines have more than 30 subwords" in printed
    assert manifest["shard_size"] == 7
    assert manifest["settings"]["decoding"] == {"beam": 3, "length_penalty": 0.7, "max_ratio": 2.0}
    assert manifest["teacher"] == {"path": str(teacher), "validation_bleu": None}
    hypotheses = translator.translate(text(12), **how)
    assert manifest["valid"] == {
        "bleu": pytest.approx(sacrebleu.corpus_bleu(hypotheses, [text(12)]).score),
        "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
        + sacrebleu.__version__,
        "files": [asdict(checksum(path)) for path in valid],
    }
    assert (out / "subwords.model").read_bytes() == translator.subwords.model
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock", "manifest.json", "subwords.model", "train.en", "train.xx"
    ]  # fmt: skip


@torch.no_grad()
def likelihood(judge: Translator, source: str, words: list[int]) -> float:
    """log P of the length and of the words at that length, from plain logits."""
    model: Any = judge.system
    tokens = [LENGTH, *judge.subwords.encode([source.strip()])[0][:30], EOS]
    encoded = model.transformer.encode(torch.tensor([tokens]))
    inputs = torch.full((1, len(words)), MASK)
    logits = model.transformer.logits(model.transformer.decode(inputs, inputs > 0, encoded))[0]
    of_words = logits.log_softmax(1)[range(len(words)), words].sum()
    of_length = model.length.output(encoded.hidden[0, 0]).log_softmax(0)[len(words)]
    return float(of_words + of_length)


@pytest.mark.filterwarnings("ignore:cut after")
def test_a_judge_chooses_among_the_hypotheses(teacher: Path, source: Path, tmp_path: Path) -> None:
    judge = teacher.with_name("cmlm")
    run(tmp_path / "plain", teacher, source, beam=4)
    run(tmp_path / "out", teacher, source, beam=4, judge=str(judge))
    sources, found = lines_of(tmp_path / "out/train.en"), lines_of(tmp_path / "out/train.xx")
    model = Translator.from_pretrained(judge)
    beams = Translator.from_pretrained(teacher).translate_scored(sources, beam=4)
    n_chosen = 0
    for line, chosen, beam in zip(sources, found, beams, strict=True):
        if not line.strip():
            assert chosen == ""
            continue
        said = [t for t in beam if 0 < len(t.tokens) <= 30]
        best = max(said, key=lambda t: likelihood(model, line, t.tokens), default=beam[0])
        assert chosen == best.text
        n_chosen += best is not beam[0]
    assert n_chosen > 20
    assert found != lines_of(tmp_path / "plain/train.xx")
    with pytest.raises(UserError, match=r"other settings:\n  judge: none there, [0-9a-f]{64} here"):
        run(tmp_path / "plain", teacher, source, beam=4, judge=str(judge))
    settings = json.loads((tmp_path / "out/manifest.json").read_text())["settings"]
    assert len(settings["judge"]) == 64


def test_rejects_a_judge_that_cannot_judge(teacher: Path, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="transformer is a transformer; it must be a model that"):
        run(tmp_path / "out", teacher, source, judge=str(teacher))
    subwords = train_subwords(text(40, longest=5)[::-1], tmp_path / "other.model", 60)
    other = Translator(random_model("cmlm"), subwords, languages=("en", "xx"))
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="other has other subwords than the teacher"):
        run(tmp_path / "out", teacher, source, judge=str(tmp_path / "other"))
    turned = Translator.from_pretrained(teacher.with_name("cmlm"))
    turned.languages = "xx", "en"
    turned.save_pretrained(tmp_path / "turned")
    with pytest.raises(UserError, match=r"turned translates xx to en, the teacher .* en to xx"):
        run(tmp_path / "out", teacher, source, judge=str(tmp_path / "turned"))
    assert not (tmp_path / "out").exists()


def test_shard_size() -> None:
    with mock.patch.object(shards_module, "FEWEST", 1024):
        sizes = [shard_size(n) for n in (1, 29_000, 100_000, 4_500_000)]
    assert sizes == [1024, 1024, 3125, 8192]


def test_a_shard_is_taken_once(tmp_path: Path) -> None:
    ours = Shards(tmp_path, lines=20, size=8)
    theirs = Shards(tmp_path, lines=20, size=8)
    assert [ours.lines_of(n) for n in range(len(ours))] == [8, 8, 4]
    assert ours.take(0)
    assert not theirs.take(0)
    assert theirs.take(1)
    theirs.write(1, ["x"] * 8)
    theirs.release_all()
    assert [ours.take(n) for n in range(3)] == [True, False, True]
    assert ours.lines_done() == 8
    shutil.rmtree(tmp_path)  # as the first rank does when all is done
    assert not theirs.take(2)


def _work(out: Path, teacher: Path, source: Path, die_at_sync: int) -> None:
    torch.set_num_threads(1)
    with mock.patch.object(shards_module, "FEWEST", 7), dying_at_sync(die_at_sync):
        run(out, teacher, source)


def test_killed_at_every_write(teacher: Path, source: Path, tmp_path: Path) -> None:
    """Each start gets one write further; nothing is lost or translated twice."""
    run(tmp_path / "once", teacher, source)
    seen: dict[str, int] = {}
    for count in itertools.count(1):
        process = FORKS.Process(target=_work, args=(tmp_path / "out", teacher, source, count))
        process.start()
        process.join()
        for path in (tmp_path / "out/shards").glob("[0-9]" * 8):
            written = path.stat().st_mtime_ns
            assert seen.setdefault(path.name, written) == written  # not done again
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert len(seen) == 9
    assert count > 5
    assert files(tmp_path / "out") == files(tmp_path / "once")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert 1 < len(manifest["starts"]) <= count


def test_killed_at_random_moments(teacher: Path, source: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    run(tmp_path / "once", teacher, source)
    whole = time.monotonic() - began
    end_despite_kills(_work, (tmp_path / "out", teacher, source, 0), kills=8, longest=0.4 * whole)
    assert files(tmp_path / "out") == files(tmp_path / "once")


def _rank(environment: dict[str, str], out: Path, teacher: Path, source: Path) -> None:
    os.environ |= environment
    torch.set_num_threads(1)
    with mock.patch.object(shards_module, "FEWEST", 300):
        run(out, teacher, source, beam=2)


def test_two_ranks_equal_one(teacher: Path, tmp_path: Path) -> None:
    """Both are killed on the way; torchrun starts them again."""
    source, out = tmp_path / "train.en", tmp_path / "two"
    source.write_text("".join(f"{line}\n" for line in text(1_500)))
    with mock.patch.object(shards_module, "FEWEST", 300):
        run(tmp_path / "one", teacher, source, beam=2)
    module = ["-m", "oaxe", "distill", "--teacher", str(teacher), "--source", str(source)]
    module += ["--out", str(out), "--beam", "2", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    given = out, teacher, source
    processes = [FORKS.Process(target=_rank, args=({**shared, "RANK": r}, *given)) for r in "01"]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 60
    while not [*(out / "shards").glob("[0-9]" * 8)] and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in processes:
        process.kill()
        process.join()
    assert 0 < len([*(out / "shards").glob("[0-9]" * 8)]) < 5
    assert len([*(out / "shards").glob("*.taken")]) > 1  # both were at work
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    again = subprocess.run(
        [sys.executable, *torchrun, *module], env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert "distilling: 1,500 of 1,500 sentences" in again.stdout
    assert again.stdout.count("1,500 lines in") == 1  # the first rank alone speaks
    assert files(out) == files(tmp_path / "one")


def test_worker_processes_equal_one(teacher: Path, tmp_path: Path) -> None:
    """They write what one alone writes, and a killed one is an error, not a hang."""
    source = tmp_path / "train.en"
    source.write_text("".join(f"{line}\n" for line in text(600)))
    translate = Translator.translate
    others: list[Path] = []

    def late(self: Translator, *arguments: Any, **options: Any) -> list[str]:
        """Wait until a worker has begun, so that it has shards to do."""
        deadline = time.monotonic() + 60
        while not others and time.monotonic() < deadline:
            others.extend([*(tmp_path / "helped/shards").glob("*.taken")][1:])
            time.sleep(0.02)
        return translate(self, *arguments, **options)

    with mock.patch.object(shards_module, "FEWEST", 100):
        run(tmp_path / "alone", teacher, source, beam=2)
        with mock.patch.object(Translator, "translate", late):
            run(tmp_path / "helped", teacher, source, beam=2, processes=2)
    assert others
    assert files(tmp_path / "helped") == files(tmp_path / "alone")
    assert not multiprocessing.active_children()

    def killing(self: Translator, *arguments: Any, **options: Any) -> list[str]:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        return translate(self, *arguments, **options)

    with (
        mock.patch.object(multiprocessing, "get_context", return_value=FORKS),  # starts sooner
        mock.patch.object(Translator, "translate", killing),
        pytest.raises(UserError, match="a worker process was killed"),
    ):
        run(tmp_path / "killed", teacher, source, beam=2, processes=2)
    run(tmp_path / "killed", teacher, source, beam=2)
    assert lines_of(tmp_path / "killed/train.xx") == lines_of(tmp_path / "alone/train.xx")


def test_a_signal_stops_it_and_it_resumes(
    teacher: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translate, calls, printed = Translator.translate, itertools.count(1), io.StringIO()

    def interrupted(self: Translator, *arguments: Any, **options: Any) -> list[str]:
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return translate(self, *arguments, **options)

    monkeypatch.setattr(Translator, "translate", interrupted)
    arguments: dict[str, Any] = {"teacher": str(teacher), "source": source, "device": "cpu"}
    assert not distill(tmp_path / "out", console=Console(file=printed), **arguments)
    assert "interrupted; the same command continues" in printed.getvalue()
    assert len([*(tmp_path / "out/shards").glob("[0-9]" * 8)]) == 3
    monkeypatch.undo()
    with mock.patch.object(shards_module, "FEWEST", 9):  # the plan of the first start holds
        run(tmp_path / "out", teacher, source)
    with mock.patch.object(shards_module, "FEWEST", 7):
        run(tmp_path / "once", teacher, source)
    assert files(tmp_path / "out") == files(tmp_path / "once")


def test_exit_code_of_ctrl_c(
    teacher: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Translator, "translate", interrupted)
    arguments = ["--teacher", str(teacher), "--source", str(source), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["distill", *arguments, "--device", "cpu"])
    assert result.exit_code == 130, result.output
    assert "interrupted; the same command continues from here\n" in result.output


def test_a_finished_folder_is_verified(teacher: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(out, teacher, source)
    before = files(out)
    (out / "shards").mkdir()  # killed while it tidied up
    assert "is already done with these settings" in run(out, teacher, source, batch_tokens=99)
    assert files(out) == before
    with pytest.raises(UserError) as error:
        run(out, teacher, source, beam=2, bf16=True)
    assert "decoding.beam: 5 there, 2 here" in str(error.value)
    assert "bf16: False there, True here" in str(error.value)
    (out / "train.xx").write_text("something else\n")
    with pytest.raises(UserError, match=r"train.xx is damaged: .*; choose another folder"):
        run(out, teacher, source)


def test_rejects_an_unfinished_folder_of_other_settings(
    teacher: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "translate", mock.Mock(side_effect=RuntimeError("stop")))
    with pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "out", teacher, source)
    other = tmp_path / "other"
    other.write_text("a dog\n")
    with pytest.raises(UserError, match=r"(?s)length_penalty: 1.0 there, 2.0 here.*source.bytes"):
        run(tmp_path / "out", teacher, other, length_penalty=2)
    torch.manual_seed(2)
    subwords = Translator.from_pretrained(teacher).subwords
    Translator(random_model("transformer"), subwords).save_pretrained(tmp_path / "b")
    with pytest.raises(UserError, match=r"teacher: \w{64} there, \w{64} here"):
        run(tmp_path / "out", tmp_path / "b", source)


def test_other_validation_text_is_measured_again(
    teacher: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes no translation: what is done is kept."""
    out, bad, good = tmp_path / "out", tmp_path / "bad", tmp_path / "good"
    bad.write_text("".join(f"{line}\n" for line in reversed(text(12))))
    good.write_text("".join(f"{line}\n" for line in text(12)))
    with monkeypatch.context() as patch:
        patch.setattr(Shards, "take", mock.Mock(side_effect=RuntimeError("stop")))
        with pytest.raises(RuntimeError, match="stop"):
            run(out, teacher, source, valid=(good, bad))
    assert "teacher: BLEU" in run(out, teacher, source, valid=(good, good))
    found = json.loads((out / "manifest.json").read_text())["valid"]
    assert found["files"] == [asdict(checksum(good))] * 2


def full_after(count: int) -> Callable[[int], None]:
    calls, sync = itertools.count(1), os.fsync

    def full(descriptor: int) -> None:
        if next(calls) > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    return full


@pytest.mark.parametrize("count", [0, 3, 10, 12])
def test_full_disk_is_explained_and_resumed(
    count: int, teacher: Path, source: Path, tmp_path: Path
) -> None:
    with (
        mock.patch("os.fsync", full_after(count)),
        pytest.raises(UserError, match=r"No space left on device.*run the same command again"),
    ):
        run(tmp_path / "out", teacher, source)
    assert not (tmp_path / "out/manifest.json").exists()
    run(tmp_path / "out", teacher, source)
    run(tmp_path / "once", teacher, source)
    assert files(tmp_path / "out") == files(tmp_path / "once")


def test_a_damaged_shard_is_translated_again(teacher: Path, source: Path, tmp_path: Path) -> None:
    with mock.patch("os.fsync", full_after(10)), pytest.raises(UserError):
        run(tmp_path / "out", teacher, source)
    shard = tmp_path / "out/shards/00000002"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"00000002 was damaged: it had 6 lines instead of 7"):
        run(tmp_path / "out", teacher, source)
    run(tmp_path / "out", teacher, source)
    run(tmp_path / "once", teacher, source)
    assert files(tmp_path / "out") == files(tmp_path / "once")


def test_rejects_a_second_run_in_the_folder(
    teacher: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(*_: Any, **__: Any) -> None:
        run(tmp_path / "out", teacher, source)

    monkeypatch.setattr(Translator, "translate", second)
    with pytest.raises(UserError, match="another process is distilling in"):
        run(tmp_path / "out", teacher, source)


def test_too_little_memory_is_explained(
    teacher: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(Translator, "translate", mock.Mock(side_effect=error))
    with pytest.raises(UserError, match=r"batches of 16,384 tokens.*lower --batch-tokens"):
        run(tmp_path / "out", teacher, source)


def test_rejects_unusable_inputs(teacher: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def message(**changes: Any) -> str:
        with pytest.raises(UserError) as error:
            run(**{"out": out, "teacher": teacher, "source": source, **changes})
        return str(error.value)

    for name, content in {"latin1": "gr\xf6\xdfer\n".encode("latin1"), "empty": b""}.items():
        (tmp_path / name).write_bytes(content)
    assert "cannot read" in message(source=tmp_path / "nowhere")
    assert not out.exists()
    assert "latin1, line 1 is not UTF-8" in message(source=tmp_path / "latin1")
    assert "empty is empty" in message(source=tmp_path / "empty")
    (tmp_path / "one").write_text("a dog\n")
    wrong_valid = tmp_path / "one", tmp_path / "latin1"
    assert "latin1, line 1 is not UTF-8" in message(valid=wrong_valid)
    assert "xz has 60 lines" in message(valid=(source, tmp_path / "one"))
    assert "is a cmlm, which does not go word by word; distillation needs" in message(
        teacher=teacher.parent / "cmlm"
    )
    assert "length_penalty must be at least 0, got nan" in message(length_penalty=float("nan"))
    assert not out.exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.xx").write_text("mine\n")
    assert "train.xx already, which would be overwritten" in message(out=tmp_path / "own")
    assert (tmp_path / "own/train.xx").read_text() == "mine\n"
    assert "holds another manifest.json" in message(out=make_data(tmp_path / "digits"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/manifest.json").write_text("[" * 100_000)
    assert "manifest.json is damaged: maximum recursion" in message(out=tmp_path / "deep")


def test_rejects_a_teacher_of_the_other_direction(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.en", "train.xx", "lines.txt"):
        Path(name).write_text("".join(f"{line}\n" for line in text(50)))
    for source, target in (("xx", "en"), ("en", "yy"), ("en", "xx")):
        files = "train.en", "train.xx" if target != "en" else "lines.txt"
        ok("prepare", f"{source}-{target}", "--from", source, "--to", target, "--vocab-size", "60",
           "--train", *files)  # fmt: skip

    def distilled(*arguments: str) -> str:
        return ok("distill", "--teacher", str(teacher), "--out", "out", "--beam", "1", *arguments)

    for arguments, what in {
        ("--data", "xx-en"): "train.en is xx to en",
        ("--data", "en-yy"): "train.en is en to yy",
        ("--source", "train.xx"): r"train.xx is xx to \?",
        ("--source", "lines.txt", "--valid", "train.xx", "train.en"): "train.xx is xx to en",
        ("--source", "lines.txt", "--valid", "lines.txt", "train.en"): r"lines.txt is \? to en",
    }.items():
        with pytest.raises(
            UserError, match=f"transformer translates en to xx, but {what}; give a model"
        ):
            distilled(*arguments)
        assert not Path("out").exists()
    assert "50 lines in out" in distilled("--data", "en-xx", "--valid", "train.en", "lines.txt")
    assert "already done" in distilled("--source", "train.en", "--valid", "train.en", "lines.txt")


def test_training_source_is_found_after_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old/raw").mkdir(parents=True)
    (tmp_path / "elsewhere/raw").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "old")
    for name in ("raw/train.en", "raw/train.xx"):
        Path(name).write_text("".join(f"{line}\n" for line in text(50)))
    ok("prepare", "data/set", "--from", "en", "--to", "xx", "--vocab-size", "60",
       "--train", "raw/train.en", "raw/train.xx")  # fmt: skip
    assert training_source(Path("data/set")) == Path("raw/train.en")
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "elsewhere")
    Path("raw/train.en").write_text("of another data set\n")
    found = training_source(Path("../new/data/set"))
    assert found == tmp_path / "new/raw/train.en"


def test_an_error_of_the_first_rank_is_raised() -> None:
    def fail() -> None:
        raise UserError("nothing")

    alone = Ranks(0, 1, torch.device("cpu"))
    assert alone.first_does(lambda: 3) == 3
    with pytest.raises(UserError, match="nothing"):
        alone.first_does(fail)


def test_documented_commands_from_text_to_oaxe(tmp_path: Path) -> None:
    """Prepare, train a teacher, distill, prepare with its subwords, train from XE to OaXE."""
    data = make_data(tmp_path / "raw", pairs=60)
    raw = [str(tmp_path / "raw" / name) for name in ("valid.src", "valid.tgt")]
    at = settings_of(data, tmp_path / "at", model__system="transformer", train__steps=4)
    result, _ = train_small(at)
    out = tmp_path / "distilled"
    printed = ok("distill", "--teacher", at.run, "--data", str(data), "--out", str(out),
                 "--valid", *raw, "--beam", "2", "--device", "cpu")  # fmt: skip
    assert f"oaxe prepare FOLDER --from aa --to bb --subwords {out}/subwords.model" in printed
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["teacher"]["validation_bleu"] == result["bleu"]
    ok("prepare", str(tmp_path / "data"), "--from", "aa", "--to", "bb", "--subwords",
       str(out / "subwords.model"), "--train", str(out / "train.aa"), str(out / "train.bb"),
       "--valid", *raw)  # fmt: skip
    prepared = read_manifest(tmp_path / "data")
    kept = sum(line.strip() != "" for line in lines_of(out / "train.bb"))
    assert prepared.splits["train"].pairs == kept
    assert prepared.inputs["valid.source"] == read_manifest(data).inputs["valid.source"]
    train_small(settings_of(tmp_path / "data", tmp_path / "xe", train__steps=3))
    loss = {"cmlm__loss": "oaxe", "train__init_from": str(tmp_path / "xe")}
    oaxe, _ = train_small(settings_of(tmp_path / "data", tmp_path / "oaxe", train__steps=3, **loss))
    assert oaxe["step"] == 3
    # Weights of a model for the raw data fit too: the subwords are the same.
    train_small(settings_of(data, tmp_path / "raw-xe", train__steps=3))
    loss["train__init_from"] = str(tmp_path / "raw-xe")
    assert train_small(settings_of(tmp_path / "data", tmp_path / "c", train__steps=3, **loss))

    (tmp_path / "raw/train.src").write_text("1 2\n")
    with pytest.raises(UserError, match=r"which has changed since .*name the file with --source"):
        ok("distill", "--teacher", at.run, "--data", str(data), "--out", str(tmp_path / "d"))
    (tmp_path / "raw/train.src").unlink()
    with pytest.raises(UserError, match=r"which is neither here nor in .*with --source FILE"):
        ok("distill", "--teacher", at.run, "--data", str(data), "--out", str(tmp_path / "d"))
    refused = CliRunner().invoke(app, ["distill", "--teacher", at.run, "--out", "x"])
    assert refused.exit_code == 2
    assert "either --source or --data" in refused.output
