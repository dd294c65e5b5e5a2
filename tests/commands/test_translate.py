"""Prepare, train and translate, through the command line."""

import json
import lzma
import os
import selectors
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.decoding.lines import translate_file
from oaxe.decoding.translator import Translator
from oaxe.support.errors import UserError
from tests.cli import printed

ok = partial(printed, app)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared data set and a finished run (too short to have learned much)."""
    folder = tmp_path_factory.mktemp("user")
    text = "".join(f"{i % 7} {i % 5} {i % 3}\n" for i in range(200))
    for name in ("train.a", "train.b", "valid.a", "valid.b"):
        # one validation sentence is longer than the model can be
        valid = text[:60] + " ".join("123" * 20) + "\n"
        (folder / name).write_text(text if name.startswith("train") else valid)
    configuration = folder / "config.yaml"
    configuration.write_text(
        f"run: {folder}/run\n"
        f"data: {{folder: {folder}/data, update_tokens: 200, batch_tokens: 400}}\n"
        "model: {size: tiny, max_length: 20}\n"
        "train: {steps: 3}\n"
    )
    pairs = [f"{folder}/{name}" for name in ("train.a", "train.b", "valid.a", "valid.b")]
    ok("prepare", f"{folder}/data", "--from", "aa", "--to", "bb", "--vocab-size", "22",
       "--train", *pairs[:2], "--valid", *pairs[2:])  # fmt: skip
    ok("config", "check", str(configuration))
    ok("train", str(configuration))
    return folder


def test_an_exported_model_translates_and_is_evaluated(folder: Path) -> None:
    text, lines = "1 2 3\n\n0 1\n", folder / "lines.txt"
    lines.write_text(text)
    expected = ok("translate", "--model", f"{folder}/run", "--length-candidates", "2", stdin=text)
    for name, flags in (("plain", ()), ("int8", ("--int8",))):
        said = ok("export", f"{folder}/run", f"{folder}/{name}", "--length-share", "0", *flags)
        assert f"oaxe translate --model {folder}/{name}" in said
    model = ["--model", f"{folder}/plain", "--threads", "1"]
    assert ok("translate", *model, "--length-candidates", "2", stdin=text) == expected
    report = folder / "report.json"
    ok(
        "evaluate", "--model", f"a={folder}/run", "--model", f"b={folder}/plain",
        "--model", f"c={folder}/int8", "--source", str(lines), "--ref", str(lines),
        "--json", str(report), "--speed", "--speed-sentences", "1",
    )  # fmt: skip
    found = json.loads(report.read_text())["systems"]
    assert found["a"]["bleu"] == found["b"]["bleu"]
    assert [found[name]["speed"]["precision"] for name in "abc"] == ["fp32", "float32", "int8"]
    with pytest.raises(UserError, match="for a CPU cannot be on cuda"):
        ok("translate", "--model", f"{folder}/int8", "--device", "cuda", stdin=text)


def test_a_file_and_standard_input_give_the_same(folder: Path) -> None:
    source = folder / "source.txt"
    source.write_text("1 2 3\n\n0 1\n")
    out = folder / "out.txt"
    ok("translate", "--model", f"{folder}/run", str(source), "-o", str(out))
    lines = out.read_text().split("\n")
    assert len(lines) == 4  # three lines, and nothing after the last
    assert lines[1] == ""
    assert ok("translate", "--model", f"{folder}/run/model", stdin=source.read_text()) == "\n".join(
        lines
    )


def test_text_on_the_command_line_is_split_into_sentences(folder: Path) -> None:
    run = ["--model", f"{folder}/run"]
    expected = ok("translate", *run, "--paragraphs", stdin="1 2. 3 4.\n0 1\n")
    assert ok("translate", *run, "1 2. 3 4.\n0 1") == expected
    with pytest.warns(UserWarning, match="cut after 20 subwords"):  # longer than a path may be
        assert ok("translate", *run, "1 " * 3_000).count("\n") == 1


def test_a_file_of_that_name_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "1 2 3").write_text("0 1\n0 1\n")
    monkeypatch.chdir(folder)
    expected = ok("translate", "--model", "run", stdin="0 1\n0 1\n")
    assert ok("translate", "--model", "run", "1 2 3") == expected
    for name, message in (("missing.txt", "there is none"), ("data", "data is a folder")):
        with pytest.raises(UserError, match=message):
            ok("translate", "--model", "run", name)


def test_the_model_in_the_box_is_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oaxe.decoding.box.BOX", folder / "nothing")
    with pytest.raises(UserError, match=r"no model of its own.*--model"):
        ok("translate", "1 2 3")
    with pytest.raises(UserError, match=r"no model of its own.*--model"):
        ok("serve")
    ok("export", f"{folder}/run", f"{folder}/box", "--int8")
    monkeypatch.setattr("oaxe.decoding.box.BOX", folder / "box")
    expected = ok("translate", "--model", f"{folder}/box", "1 2 3")
    assert ok("translate", "1 2 3") == expected
    assert Translator.from_pretrained().translate_paragraphs(["1 2 3"]) == expected.splitlines()
    with pytest.raises(UserError, match="is a folder here, which has no revisions"):
        Translator.from_pretrained(revision="main")


def test_an_exported_model_is_asked_without_torch(folder: Path) -> None:
    ok("export", f"{folder}/run", f"{folder}/light", "--int8")
    code = (
        "import sys\nfrom oaxe.commands.app import app\n"
        "try: app()\n"
        "finally: assert not {'torch', 'onnx', 'scipy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, "translate", "--model", f"{folder}/light", "1 2 3"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stderr == ""
    assert result.stdout == ok("translate", "--model", f"{folder}/light", "1 2 3")


def test_a_pipe_is_answered_before_it_ends(folder: Path) -> None:
    """A line, lines together, and one before the beginning of another."""
    command = [sys.executable, "-m", "oaxe", "translate", "--model", f"{folder}/run"]
    expected = ok("translate", "--model", f"{folder}/run", stdin="1 2 3\n0 1\n2\n\n4 1\n")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = b""
        for text in (b"1 2 3\n", b"0 1\n2\n", b"\n4 "):
            process.stdin.write(text)
            process.stdin.flush()
            for _ in range(text.count(b"\n")):
                found += line_within(60, process.stdout)
        assert found.count(b"\n") == 4
        found += process.communicate(b"1\n")[0]
    assert found.decode() == expected


def test_a_reader_that_leaves_is_no_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `| head` does."""
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        source = folder / "many.txt"
        source.write_text("1 2 3\n" * 3)
        translator = Translator.from_pretrained(folder / "run")
        translate_file(translator, source, None, as_json=False, batch_tokens=99, bf16=False)
        closed.write("what is still in a buffer goes nowhere")


def test_text_of_old_macs_is_refused(folder: Path) -> None:
    (folder / "mac.txt").write_bytes(b"1 2\r3 4\r")
    result = CliRunner().invoke(app, ["translate", "--model", f"{folder}/run", f"{folder}/mac.txt"])
    assert isinstance(result.exception, UserError)
    assert "its lines end as on old Macs" in str(result.exception)


def test_a_full_disk_is_named(folder: Path) -> None:
    (folder / "in.txt").write_text("1 2 3\n")
    command = ["translate", "--model", f"{folder}/run", f"{folder}/in.txt", "-o", "/dev/full"]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, OSError)
    assert result.exception.filename == "/dev/full"


def line_within(seconds: float, file: IO[bytes]) -> bytes:
    """Byte by byte: what Python has read ahead is not seen by the system."""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            assert selector.select(seconds), f"no answer, only {line!r}"
            line += os.read(file.fileno(), 1)
    return line


def test_compressed_text_and_links_are_followed(folder: Path) -> None:
    (folder / "in.txt.xz").write_bytes(lzma.compress(b"1 2 3\n0 1\n"))
    real, link = folder / "real.txt", folder / "link.txt"
    link.symlink_to(real)
    ok("translate", "--model", f"{folder}/run", f"{folder}/in.txt.xz", "-o", str(link))
    assert link.is_symlink()
    expected = ok("translate", "--model", f"{folder}/run", stdin="1 2 3\n0 1\n")
    assert real.read_text() == expected


def test_json_lines_hold_all_alternatives(folder: Path) -> None:
    output = ok(
        "translate", "--model", f"{folder}/run", "--json", "--length-candidates", "3", stdin="1 2\n"
    )
    record = json.loads(output)
    assert record["source"] == "1 2"
    scores = [translation["score"] for translation in record["translations"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert len({translation["length"] for translation in record["translations"]}) == 3


def test_paragraphs(folder: Path) -> None:
    model = "--model", f"{folder}/run"
    one, two, three = ok("translate", *model, stdin="1 2!\n3 4\n0 1?\n").splitlines()
    assert one
    assert two
    text = "1 2! 3 4\n\n 0 1? \n"
    assert ok("translate", *model, "--paragraphs", stdin=text) == f"{one} {two}\n\n {three} \n"
    whole = ok("translate", *model, stdin=text)
    assert whole.splitlines()[0] != f"{one} {two}"
    lines = ok("translate", *model, "--paragraphs", "--json", stdin=text).splitlines()
    first, blank, _ = map(json.loads, lines)
    assert first["translation"] == f"{one} {two}"
    assert [s["source"] for s in first["sentences"]] == ["1 2!", "3 4"]
    assert [s["translations"][0]["text"] for s in first["sentences"]] == [one, two]
    assert blank == {"source": "", "translation": "", "sentences": []}
    with pytest.warns(UserWarning, match=r"cut after 20 subwords.*: line 2 \(\d+\)\. "):
        ok("translate", *model, "--paragraphs", stdin="1 2! 3! 4!\n5! " + "12 " * 20 + "\n")


def test_errors_leave_existing_files_alone(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text("1 2\n")
    output = folder / "out.txt"
    output.write_text("of before\n")
    with pytest.raises(UserError, match="beam is not an option"):
        ok("translate", "--model", f"{folder}/run", str(text), "-o", str(output), "--beam", "3")
    assert output.read_text() == "of before\n"
    with pytest.raises(UserError, match=r"text.txt is read, and would be overwritten"):
        ok("translate", "--model", f"{folder}/run", str(text), "-o", f"{folder}/./text.txt")
    assert text.read_text() == "1 2\n"
    expected = ok("translate", "--model", f"{folder}/run", stdin="1 2\n")
    ok("translate", "--model", f"{folder}/run", str(text), "-o", str(output))
    assert output.read_text() == expected


def test_lines_end_at_line_feeds_alone(folder: Path) -> None:
    odd = folder / "odd.txt"
    odd.write_bytes("1\r2\u20283\r\n1 2".encode())
    assert ok("translate", "--model", f"{folder}/run", str(odd)).count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{folder}/nowhere"], "nowhere"),
        (["--model", "{folder}/run", "{folder}/none.txt"], "none.txt looks like a file, and there"),
        (
            ["--model", "{folder}/run", "--beam", "3"],
            "beam is not an option; known: length_candidates",
        ),
        (["--model", "{folder}/run", "{folder}/latin1.txt"], "latin1.txt, line 2 is not UTF-8"),
        (["--model", "{folder}/run", "--device", "abacus"], "--device abacus"),
        (["--model", "{folder}/run", "-o", "{folder}"], "it is a folder; give a file"),
        (["--model", "{folder}/run", "-o", "{folder}/no/x"], "there is no folder .*/no; create"),
    ],
)
def test_rejects_unusable_arguments(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "latin1.txt").write_bytes("1\ngrößer\n".encode("latin1"))
    filled = [argument.format(folder=folder) for argument in arguments]
    with pytest.raises(UserError, match=message):
        ok("translate", *filled, stdin="1 2\n")


def test_an_unfinished_run_is_refused(folder: Path) -> None:
    unfinished = folder / "unfinished"
    unfinished.mkdir(exist_ok=True)
    (unfinished / "config.yaml").write_text("run: x\n")
    again = r"unfinished is not finished.*; run the command that began it again, which goes on"
    with pytest.raises(UserError, match=f"{again}$"):
        ok("translate", "--model", str(unfinished), stdin="1\n")
    (unfinished / "best/step-00000010").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{again}, or take .*best/step-00000010$"):
        ok("translate", "--model", str(unfinished), stdin="1\n")
