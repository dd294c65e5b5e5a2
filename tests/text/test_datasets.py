"""Data sets by name, from folders and from a server with faults."""

import errno
import hashlib
import io
import itertools
import os
import re
import shlex
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.support.errors import UserError
from oaxe.text.datasets import download as download_module
from oaxe.text.datasets.archives import join_archives
from oaxe.text.datasets.catalogue import CATALOGUE, Archive, Entry, find
from oaxe.text.datasets.dataset import dataset, read_sums
from oaxe.text.datasets.download import download
from oaxe.text.manifest import read_manifest

CONTENT = bytes(itertools.islice(itertools.cycle(range(251)), 300_000))


@dataclass
class Server:
    """Files by their path, and what should go wrong."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    lengths: bool = True  # says how long a file is
    cut_after: list[int] = field(default_factory=list)  # bytes of each of the first answers
    errors: list[int] = field(default_factory=list)  # instead of the first answers
    tags: bool = True  # names files by their content
    once: dict[str, bytes] = field(default_factory=dict)  # instead of the file, the first time
    asked: list[str | None] = field(default_factory=list)  # Range of each request
    address: str = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download_module, "SECONDS", 0.001)
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            state.asked.append(wanted)
            if state.errors:
                self.send_error(state.errors.pop(0))
                return
            if self.path not in state.files:
                self.send_error(404)
                return
            content, start = state.once.pop(self.path, state.files[self.path]), 0
            tag = f'"{hashlib.md5(content).hexdigest()}"'
            if wanted and state.ranges and self.headers["If-Range"] in (None, tag):
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if state.tags:
                self.send_header("ETag", tag)
            if start:
                place = f"bytes {start}-{len(content) - 1}/{len(content)}"
                self.send_header("Content-Range", place)
            if state.lengths:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + state.cut_after.pop(0) if state.cut_after else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    state.address = f"http://127.0.0.1:{found.server_address[1]}"
    yield state
    found.shutdown()
    thread.join()
    found.server_close()


def fetch(server: Server, path: Path, expected: str | None = None) -> None:
    download(f"{server.address}/file", path, expected, Console(quiet=True))


@pytest.mark.parametrize("lengths", [True, False])
def test_download_of_a_whole_file(server: Server, tmp_path: Path, lengths: bool) -> None:
    server.files["/file"], server.lengths = CONTENT, lengths
    fetch(server, tmp_path / "a", hashlib.sha256(CONTENT).hexdigest())
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["a"]
    assert server.asked == [None]


def test_a_connection_that_breaks_is_resumed(server: Server, tmp_path: Path) -> None:
    server.files["/file"], server.cut_after = CONTENT, [1000, 0, 200_000]
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000-", "bytes=1000-", "bytes=201000-"]


def test_a_second_call_resumes(server: Server, tmp_path: Path) -> None:
    server.files["/file"], server.cut_after = CONTENT, [5_000, 0, 0, 0, 0]
    with pytest.raises(UserError, match=r"in 5 tries: the connection was cut.*5,000 bytes"):
        fetch(server, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=5000-"


@pytest.mark.parametrize("tags", [True, False])
def test_a_part_of_another_version_is_replaced(server: Server, tmp_path: Path, tags: bool) -> None:
    server.files["/file"], server.cut_after, server.tags = CONTENT, [5_000, 0, 0, 0, 0], tags
    with pytest.raises(UserError, match="in 5 tries"):
        fetch(server, tmp_path / "a")
    server.files["/file"] = new = CONTENT[::-1]
    fetch(server, tmp_path / "a")
    assert server.asked[-1] == "bytes=5000-"
    # Without a tag nobody can know; a checksum or the archive's reader will.
    assert (tmp_path / "a").read_bytes() == (new if tags else CONTENT[:5_000] + new[5_000:])
    assert os.listdir(tmp_path) == ["a"]


def test_total_length_from_content_range(server: Server, tmp_path: Path) -> None:
    server.files["/file"], server.lengths, server.cut_after = CONTENT, False, [2_000]
    (tmp_path / "a.part").write_bytes(CONTENT[:1_000])
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-", "bytes=3000-"]


def test_new_bytes_reset_the_count_of_tries(server: Server, tmp_path: Path) -> None:
    server.files["/file"], server.cut_after = CONTENT, [1000] * 20
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.files["/file"], server.cut_after, server.ranges = CONTENT, [1000], False
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_complete_or_too_long(server: Server, tmp_path: Path, left: bytes) -> None:
    server.files["/file"] = CONTENT
    (tmp_path / "a.part").write_bytes(left)
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert len(server.asked) == (1 if left == CONTENT else 2)


def test_a_wrong_checksum_is_refused_and_kept_aside(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    with pytest.raises(UserError, match=r"SHA-256 \w{64}, expected was 12ab.*a.refused"):
        fetch(server, tmp_path / "a", "12ab")
    assert os.listdir(tmp_path) == ["a.refused"]
    assert (tmp_path / "a.refused").read_bytes() == CONTENT


def test_server_errors_are_final_or_retried(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be downloaded: 404 Not Found.*as .*/a$"):
        fetch(server, tmp_path / "a")
    assert len(server.asked) == 1  # no use in asking again
    server.files["/file"], server.errors = CONTENT, [503, 500, 408, 429]
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_unreachable_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "SECONDS", 0.001)
    with pytest.raises(UserError, match=r"could not be downloaded in 5 tries: .*refused"):
        download("http://127.0.0.1:9/file", tmp_path / "a", None, Console(quiet=True))
    assert os.listdir(tmp_path) == []


def test_full_disk_while_downloading(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    (tmp_path / "a.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"could not write .*a.part: No space left on device"):
        fetch(server, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def tar(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def small(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Entry:
    """An entry of the catalogue whose archives are on our server."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, content in {"b.en": "five\nsix\n", "b.xx": "FIVE\nSIX\n", "README": "?"}.items():
            archive.writestr(name, content)
    server.files |= {
        "/a.tgz": tar(**{
            "training/a.xx": b"ONE\nTWO\xe2\x80\xa8\nTHREE\n",
            "../../etc/a.en": b"one\ntwo\nthree",  # as if it wanted to leave its folder
            "training/a.yy": b"?",
        }),
        "/b.zip": zipped.getvalue(),
    }  # fmt: skip
    entry = replace(
        CATALOGUE["wmt16-en-ro"],
        languages=("en", "xx"),
        archives=(
            Archive(f"{server.address}/a.tgz", ("a.en", "a.xx")),
            Archive(f"{server.address}/b.zip", ("b.en", "b.xx")),
        ),
        vocab_size=30,
    )
    monkeypatch.setitem(CATALOGUE, "small-en-xx", entry)
    for name, content in {"src": "zero\n", "ref": "ZERO\n"}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr("sacrebleu.utils.get_source_file", lambda *_: str(tmp_path / "src"))
    monkeypatch.setattr("sacrebleu.utils.get_reference_files", lambda *_: [str(tmp_path / "ref")])
    return entry


def test_data_set_is_downloaded_and_recorded(server: Server, small: Entry, tmp_path: Path) -> None:
    found = dataset("small-en-xx", tmp_path / "sets")
    here = tmp_path / "sets/small-en-xx"
    assert found.train == (here / "train.en", here / "train.xx")
    assert (here / "train.en").read_text() == "one\ntwo\nthree\nfive\nsix\n"
    assert (here / "train.xx").read_text() == "ONE\nTWO\u2028\nTHREE\nFIVE\nSIX\n"
    assert found.test[1].read_text() == "ZERO\n"
    assert sorted(path.name for path in here.rglob("*")) == [
        "SHA256SUMS", "a.tgz", "archives", "b.zip",
        "test.en", "test.xx", "train.en", "train.xx", "valid.en", "valid.xx",
    ]  # fmt: skip
    sums = read_sums(here)
    assert sums["archives/a.tgz"] == hashlib.sha256(server.files["/a.tgz"]).hexdigest()
    assert len(sums) == 8

    turned = dataset("small-xx-en", tmp_path / "sets")
    assert (turned.source_language, turned.target_language) == ("xx", "en")
    assert turned.train == found.train[::-1]
    assert len(server.asked) == 2  # nothing was fetched again

    (here / "train.en").write_text("something else\n")
    with pytest.raises(UserError, match=r"train.en has the SHA-256 .*, its list says"):
        dataset("small-en-xx", tmp_path / "sets")


def test_a_changed_archive_is_refused(server: Server, small: Entry, tmp_path: Path) -> None:
    dataset("small-en-xx", tmp_path)
    here = tmp_path / "small-en-xx"
    for name in ("train.en", "archives/a.tgz"):
        (here / name).unlink()
    server.files["/a.tgz"] = tar(**{"a.en": b"other\n", "a.xx": b"OTHER\n"})
    with pytest.raises(UserError, match="it has changed or was damaged on its way"):
        dataset("small-en-xx", tmp_path)
    assert (here / "archives/a.tgz.refused").read_bytes() == server.files["/a.tgz"]
    assert not (here / "train.en").exists()


def test_a_damaged_first_download_is_replaced(server: Server, small: Entry, tmp_path: Path) -> None:
    server.once["/a.tgz"] = server.files["/a.tgz"][:150]  # all that its length promises
    with pytest.raises(UserError, match=r"a.tgz is damaged.*kept as a.tgz.refused"):
        dataset("small-en-xx", tmp_path)
    here = tmp_path / "small-en-xx"
    assert read_sums(here) == {}
    assert dataset("small-en-xx", tmp_path).train
    assert (here / "train.en").read_text() == "one\ntwo\nthree\nfive\nsix\n"
    assert read_sums(here).keys() >= {"archives/a.tgz", "archives/b.zip"}
    assert len(server.asked) == 3  # the good one was not fetched again


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar(**{"a.en": b"1\n2\n", "a.xx": b"1\n"}), "not hold parallel text: a.en 2.* a.xx 1"),
        (tar(**{"a.en": b"1\n"}), "not hold parallel text: a.en 1 lines, a.xx 0"),
        (b"no archive", "is damaged"),
        (tar(**{"a.en": b"1\n" * 999, "a.xx": os.urandom(9999)})[:-300], "is damaged"),
    ],
    ids=["unequal", "one side", "no archive", "cut off"],  # bytes have the time of day in them
)
def test_unusable_archives_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(content)
    outputs = tmp_path / "train.en", tmp_path / "train.xx"
    with pytest.raises(UserError, match=message):
        join_archives([(tmp_path / "a.tgz", ("a.en", "a.xx"))], outputs)
    assert not any(path.exists() for path in outputs)


def test_reads_sha256sums(tmp_path: Path) -> None:
    (tmp_path / "SHA256SUMS").write_text("12ab  a b\n\n34cd *./c\r\n")
    assert read_sums(tmp_path) == {"a b": "12ab", "c": "34cd"}
    (tmp_path / "SHA256SUMS").write_text("12ab  a\n\n34cd\n")
    with pytest.raises(UserError, match=r"SHA256SUMS, line 3 must be .*; got '34cd'"):
        read_sums(tmp_path)
    (tmp_path / "SHA256SUMS").write_bytes(b"12ab  \xff\n")
    with pytest.raises(UserError, match=r"SHA256SUMS, line 1 is not UTF-8"):
        read_sums(tmp_path)


def test_full_disk_while_joining_archives(small: Entry, tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    failing = mock.patch("oaxe.text.datasets.archives.copy_lines", mock.Mock(side_effect=full))
    with failing, pytest.raises(UserError, match=r"No space left.*with room"):
        dataset("small-en-xx", tmp_path)
    assert dataset("small-en-xx", tmp_path).train


def test_failure_of_sacrebleu_is_explained(
    small: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = mock.Mock(side_effect=SystemExit(1))
    monkeypatch.setattr("sacrebleu.utils.get_source_file", leaves)
    with pytest.raises(UserError, match=r"could not get the test set wmt16/dev.*valid.en"):
        dataset("small-en-xx", tmp_path)


def test_catalogue_is_consistent() -> None:
    from sacrebleu.utils import get_langpairs_for_testset

    count = 0
    for name, entry in CATALOGUE.items():
        assert find(name) == (name, False)
        assert name.endswith("-".join(entry.languages))
        assert {*entry.files} <= {"train", "valid", "test"}
        assert "test" in entry.files
        for files in entry.files.values():
            assert [f.rsplit(".")[-1] for f in files] == list(entry.languages)
        for test_set in entry.test_sets.values():
            assert "-".join(entry.languages) in get_langpairs_for_testset(test_set)
            count += 1
    assert count == 6
    assert find("wmt14-de-en") == ("wmt14-en-de", True)
    with pytest.raises(UserError, match="there is no data set 'wmt14'; there are multi30k"):
        find("wmt14")
    # Section 4.1 of the paper.
    settings = {n: (e.vocab_size, e.teacher) for n, e in CATALOGUE.items() if n.startswith("wmt")}
    assert settings == {
        "wmt14-en-de": (32_000, "big"),
        "wmt16-en-ro": (40_000, "base"),
        "wmt17-en-zh": (32_000, "big"),
    }


def test_data_commands(tmp_path: Path) -> None:
    run = CliRunner().invoke
    listed = run(app, ["data", "list"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in CATALOGUE)

    here = tmp_path / "tatoeba-en-ja"
    here.mkdir()
    for split, language in itertools.product(("train", "valid", "test"), ("en", "ja")):
        text = "".join(f"{split} {language} {i}\n" for i in range(4000))
        (here / f"{split}.{language}").write_text(text)
    digest = hashlib.sha256((here / "test.ja").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  ./tatoeba-en-ja/test.ja\n")
    got = run(app, ["data", "get", "tatoeba-ja-en", "--folder", str(tmp_path)])
    assert got.exit_code == 0, got.output
    words = shlex.split(got.stdout)
    assert words[:7] == ["oaxe", "prepare", "data/tatoeba-ja-en", "--from", "ja", "--to", "en"]
    assert words[-2:] == [str(here / "test.ja"), str(here / "test.en")]
    with mock.patch.dict(CATALOGUE):
        CATALOGUE["tatoeba-en-ja"] = replace(CATALOGUE["tatoeba-en-ja"], vocab_size=60)
        arguments = ["data", "prepare", "tatoeba-ja-en", str(tmp_path / "out")]
        prepared = run(app, arguments, env={"OAXE_DATA": str(tmp_path)})
    assert prepared.exit_code == 0, prepared.output
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.source_language, manifest.vocab_size) == ("ja", 60)
    assert manifest.options["character_coverage"] == 0.9995
    (here / "test.ja").write_text("changed\n")
    changed = run(app, ["data", "get", "tatoeba-en-ja", "--from", str(tmp_path)])
    assert isinstance(changed.exception, UserError)
    assert "its list says" in str(changed.exception)


def test_more_references_are_for_one_direction(tmp_path: Path) -> None:
    here = tmp_path / "ott2018-en-de"
    here.mkdir()
    references = [here / f"ref{number}.de" for number in range(11)]
    for path in (here / "src.en", *references):
        path.write_text(f"{path.name}\n")
    got = CliRunner().invoke(app, ["data", "get", "ott2018-en-de", "--folder", str(tmp_path)])
    assert got.exit_code == 0, got.output
    words = shlex.split(got.stdout)
    assert words[:6] == ["oaxe", "evaluate", "--model", "RUN", "--source", str(here / "src.en")]
    assert words[6:] == [w for path in references for w in ("--ref", str(path))] + ["--lang", "de"]
    assert dataset("ott2018-en-de", tmp_path).others == tuple(references[1:])
    turned = dataset("ott2018-de-en", tmp_path)
    assert turned.test == (references[0], here / "src.en")
    assert turned.others == ()


def test_missing_files_are_named_with_instructions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.ja and train.en.*ask for ASPEC-JE.*OAXE_DATA"):
        dataset("wat17-en-ja", tmp_path)
    with pytest.raises(UserError, match=r"multi30k-en-de/train.en and train.de.*put the files"):
        dataset("multi30k-en-de", tmp_path)
    assert os.listdir(tmp_path) == []
