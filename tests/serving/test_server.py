"""Translation over HTTP: equal to `oaxe translate`, also for many requests; clear refusals."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from unittest import mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from oaxe.commands.app import app
from oaxe.serving.batcher import Batcher
from oaxe.serving.server import MAX_BYTES, MAX_SENTENCES, RefusedError, Server, refuse_long, serve
from oaxe.support.errors import UserError
from oaxe.systems import ctc
from tests.runs import make_data, settings_of, train_small


def backwards(sentences: Sequence[str]) -> list[str]:
    if "bad" in sentences:
        raise ValueError("a bad sentence")
    return [sentence[::-1] for sentence in sentences]


def refuse_x(sentences: Sequence[str]) -> None:
    if "x" in sentences:
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, "x is too long")


@pytest.fixture
def server() -> Iterator[Server]:
    batcher = Batcher(backwards)
    about = {"languages": ["en", "<de>"], "model": "m"}
    with Server(("127.0.0.1", 0), batcher, refuse_x, about) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
    batcher.close()


def ask(server: Server, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def translate(server: Server, sentences: Any) -> tuple[int, Any]:
    body = json.dumps({"sentences": sentences}).encode()
    status, text = ask(server, "POST", "/translate", body)
    return status, json.loads(text)


def test_translations(server: Server) -> None:
    status, answer = translate(server, ["abc", "", "äö 字"])
    assert (status, answer["translations"]) == (200, ["cba", "", "字 öä"])
    assert answer["milliseconds"] >= 0
    assert translate(server, [])[1]["translations"] == []
    status, text = ask(server, "GET", "/health")
    assert (status, json.loads(text)["model"]) == (200, "m")
    status, text = ask(server, "GET", "/")
    assert status == 200
    assert "<h1>en to &lt;de&gt;</h1>" in text


def test_rejects_bad_requests(server: Server) -> None:
    assert ask(server, "GET", "/no")[0] == ask(server, "POST", "/no", b"{}")[0] == 404
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.request("GET", "/translate")
    refused = connection.getresponse()
    assert (refused.status, refused.headers["Allow"]) == (405, "POST")
    assert json.loads(refused.read()) == {"error": "post to /translate"}
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    connection.putrequest("POST", "/translate")
    connection.putheader("Content-Length", "9" * 5_000)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    nested = b"[" * 200_000
    for body in (
        b"", b"no", b"[]", b"{}", b'{"sentences": "abc"}', b'{"sentences": [1]}', b"\xff", nested,
        b'{"sentences": ["a"], "beam": 3}', b'{"sentences": ["a"], "": 3, "\\ud800": 3}',
    ):  # fmt: skip
        status, text = ask(server, "POST", "/translate", body)
        assert status == 400
        assert '{"sentences": [' in json.loads(text)["error"]
    assert ask(server, "POST", "/translate", b'{"sentences": ["\\ud800"]}')[0] == 400
    assert ask(server, "POST", "/translate", b" " * (MAX_BYTES + 1))[0] == 413
    assert ask(server, "POST", "/no", b" " * (8 * MAX_BYTES))[0] == 413
    assert translate(server, ["a"] * (MAX_SENTENCES + 1))[0] == 413
    status, answer = translate(server, ["x"])
    assert (status, answer["error"]) == (422, "x is too long")
    assert translate(server, ["fine"])[0] == 200  # the server goes on


def test_only_the_failing_request_fails(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["bad" if i == 7 else f"{i} a" for i in range(30)]
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda text: translate(server, [text]), texts))
    for text, (status, answer) in zip(texts, answers, strict=True):
        if text == "bad":
            assert status == 500
            assert "a bad sentence" in answer["error"]
        else:
            assert (status, answer["translations"]) == (200, [text[::-1]])
    said, deadline = "", time.monotonic() + 10  # it is written after the answer
    while "a bad sentence" not in said and time.monotonic() < deadline:
        time.sleep(0.01)
        said += capfd.readouterr().err
    assert "a bad sentence" in said  # a bug of ours has a traceback


def test_times_out_when_the_client_stops_sending(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=20) as client:
        client.sendall(b"POST /translate HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        assert b" 408 " in client.recv(1000)


def test_rejects_long_sentences() -> None:
    translator = mock.Mock()
    translator.system.max_length = 3
    translator.subwords.encode = lambda lines: [line.split() for line in lines]
    refuse_long(translator, ["a b c", "  "])
    with pytest.raises(RefusedError, match=r"sentence 1 .* has 4 subwords, the model reads 3"):
        refuse_long(translator, ["a", "a b c d"])


def test_rejects_a_used_port(server: Server) -> None:
    translator = mock.Mock(languages=("", ""), **{"decoding_with.return_value": ctc.Decoding()})
    with pytest.raises(UserError, match="choose others with --host and --port"):
        serve(
            translator,
            name="",
            host="127.0.0.1",
            port=server.server_address[1],
            batch_tokens=1,
            bf16=False,
            console=Console(),
        )


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("served")
    train_small(settings_of(make_data(folder), folder / "run"))
    return str(folder / "run")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_from_the_command_line(stop: signal.Signals, finished_run: str) -> None:
    """Answers as `oaxe translate` does, and exits with 0."""
    command = [sys.executable, "-m", "oaxe", "serve", "--model", finished_run, "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split(",")[0].removeprefix("http://")
        connection = HTTPConnection(address, timeout=20)
        sentences = ["1 2 3", "", "0 1"]
        connection.request("POST", "/translate", json.dumps({"sentences": sentences}))
        found = json.loads(connection.getresponse().read())["translations"]
    finally:
        process.send_signal(stop)
    connection.close()
    assert process.wait(20) == 0
    command = ["translate", "--model", finished_run]
    plain = CliRunner().invoke(app, command, input="\n".join(sentences))
    assert found == plain.stdout.splitlines()
    assert any(found)
