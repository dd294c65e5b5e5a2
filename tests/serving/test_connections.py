"""Slow clients, those that hang up, overload, and stopping: always an answer or an end, in time."""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from oaxe.decoding.exported import export
from oaxe.decoding.translator import Translation
from oaxe.serving.application import Service
from oaxe.serving.connections import SPARE
from oaxe.serving.limits import Limits
from oaxe.serving.models import Models, named
from oaxe.serving.server import serve
from oaxe.training.run import load_translator
from tests.runs import make_data, settings_of, train_small
from tests.serving.samples import ask, backwards, head, model_of, serving, translate, wait_until

PARSERS = ("httptools", "h11")
BODY = json.dumps({"q": "abc"}).encode()
REQUEST = head(length=len(BODY)) + BODY


@pytest.fixture(autouse=True, params=PARSERS)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with both: httptools is optional."""
    if request.param == "httptools":
        pytest.importorskip("httptools")
    else:
        monkeypatch.setattr("oaxe.serving.connections.find_spec", lambda name: None)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def read_all(client: socket.socket) -> bytes:
    """Until the server closes."""
    found = b""
    while piece := client.recv(65_536):
        found += piece
    return found


class Held:
    """A model that answers when it may."""

    def __init__(self) -> None:
        self.batches: list[Sequence[str]] = []
        self.go = threading.Event()

    def __call__(self, sentences: Sequence[str], **how: Any) -> list[list[Translation]]:
        self.batches.append(sentences)
        self.go.wait(20)
        return backwards(sentences)


def test_requests_while_busy_are_one_batch() -> None:
    held = Held()
    with serving(model_of(translate=held)) as endpoint, ThreadPoolExecutor(30) as pool:
        first = pool.submit(translate, endpoint, {"q": "first"})
        wait_until(lambda: held.batches)
        texts = [f"{i} a" for i in range(29)]
        answers = [pool.submit(translate, endpoint, {"q": text}) for text in texts]
        wait_until(lambda: endpoint.service.batcher.waiting == 29)
        held.go.set()
        assert [a.result()[1]["translatedText"] for a in answers] == [t[::-1] for t in texts]
        assert first.result()[0] == 200
    assert [len(batch) for batch in held.batches] == [1, 29]


def test_more_than_may_wait_is_told_to_come_back() -> None:
    held = Held()
    limits = Limits(waiting=4)
    with serving(model_of(translate=held), limits=limits) as endpoint:
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(translate, endpoint, {"q": "0"})
            wait_until(lambda: held.batches)
            second = pool.submit(translate, endpoint, {"q": ["1"] * 4})
            wait_until(lambda: endpoint.service.batcher.waiting == 4)
            headers = {"Content-Type": "application/json"}
            status, answer, text = ask(endpoint, "POST", "/translate", BODY, headers)
            assert (status, answer["Retry-After"]) == (503, "1")
            assert "try again later" in json.loads(text)["error"]
            assert ask(endpoint, "GET", "/ready")[0] == 503
            assert ask(endpoint, "GET", "/health")[0] == 200  # the process is alive
            held.go.set()
            assert first.result()[0] == second.result()[0] == 200
        assert ask(endpoint, "GET", "/ready")[0] == 200


def test_refuses_at_once_what_would_not_be_answered_in_time() -> None:
    held = Held()
    with serving(model_of(translate=held), limits=Limits(seconds=10)) as endpoint:
        batcher = endpoint.service.batcher
        batcher._seconds, batcher._sentences = 5.0, 1.0
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(translate, endpoint, {"q": "0"})
            wait_until(lambda: held.batches)
            second = pool.submit(translate, endpoint, {"q": ["1"] * 6})
            wait_until(lambda: batcher.waiting == 6)
            headers = {"Content-Type": "application/json"}
            status, answer, _ = ask(endpoint, "POST", "/translate", BODY, headers)
            assert (status, answer["Retry-After"]) == (503, "10")
            held.go.set()
            assert first.result()[0] == second.result()[0] == 200


def test_no_request_waits_longer_than_allowed() -> None:
    held = Held()
    with serving(model_of(translate=held), limits=Limits(seconds=0.3)) as endpoint:
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(translate, endpoint, {"q": "0"})]
            wait_until(lambda: held.batches)
            answers += [pool.submit(translate, endpoint, {"q": "1"})]
            assert [answer.result()[0] for answer in answers] == [503, 503]
        held.go.set()
        assert translate(endpoint, {"q": "2"})[0] == 200
    assert held.batches == [["0"], ["2"]]


def test_work_for_clients_that_hung_up_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    with serving(model_of(translate=held)) as endpoint:
        clients = [connect(endpoint.port) for _ in range(5)]
        clients[0].sendall(REQUEST)
        wait_until(lambda: held.batches)
        for client in clients[1:]:
            client.sendall(REQUEST)
        wait_until(lambda: endpoint.service.batcher.waiting == 4)
        for client in clients:
            client.close()
        with connect(endpoint.port) as rude:  # a reset instead of an end
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            rude.sendall(REQUEST)
        wait_until(lambda: "oaxe_connections 1.0" in ask(endpoint, "GET", "/metrics")[2])
        held.go.set()
        assert translate(endpoint, {"q": "xyz"})[1]["translatedText"] == "zyx"
    assert held.batches == [["abc"], ["xyz"]]
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_bodies_must_be_whole() -> None:
    with serving() as endpoint, connect(endpoint.port) as client:
        client.sendall(head(length=len(BODY) + 5) + BODY)
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"the request ended before its body was complete"' in answer


def test_what_is_no_http_is_answered_with_json() -> None:
    with serving() as endpoint:
        for request in (
            b"no\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            b"GET /" + b"a" * 100_000,
        ):
            with connect(endpoint.port) as client:
                client.sendall(request)
                answer = read_all(client)
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert json.loads(answer.split(b"\r\n\r\n")[1]) == {
                    "error": "this is no HTTP request"
                }
        assert translate(endpoint, {"q": "a"})[0] == 200


def test_slow_clients_are_cut() -> None:
    """Nothing sent, half a head, half a body, a byte at a time."""
    with serving(limits=Limits(seconds=0.3)) as endpoint:
        start = time.monotonic()
        clients = [connect(endpoint.port) for _ in range(4)]
        clients[1].sendall(REQUEST[:20])
        clients[2].sendall(REQUEST[:-2])
        trickle = threading.Thread(target=send_slowly, args=(clients[3], REQUEST))
        trickle.start()
        answers = [read_all(client) for client in clients[:3]]
        assert answers[0] == b""
        assert answers[1].startswith(b"HTTP/1.1 408 ")
        assert answers[2].startswith(b"HTTP/1.1 408 ")
        assert b"seconds to arrive" in answers[2]
        assert clients[3].recv(100).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - start < 5
        assert translate(endpoint, {"q": "a"})[0] == 200
        trickle.join()
        for client in clients:
            client.close()


def send_slowly(client: socket.socket, request: bytes) -> None:
    for byte in request:
        try:
            client.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.05)


def test_a_connection_serves_several_requests() -> None:
    with serving() as endpoint:
        connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
        for text in ("abc", "xy"):
            body, kind = json.dumps({"q": text}), {"Content-Type": "application/json"}
            connection.request("POST", "/translate", body, kind)
            assert json.loads(connection.getresponse().read())["translatedText"] == text[::-1]
        connection.close()
        with connect(endpoint.port) as client:  # both at once
            client.sendall(REQUEST + REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert read_all(client).count(b'"cba"') == 2


def test_answers_are_sent_at_once() -> None:
    """Not a packet at a time, each after the client has confirmed the one before: 40 ms."""
    with serving(access_log=False) as endpoint:
        connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=20)
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            seconds.append(time.perf_counter() - start)
        connection.close()
        assert min(seconds[10:]) < 0.02


def test_connections_are_bounded() -> None:
    with serving(limits=Limits(connections=3)) as endpoint:
        idle = [connect(endpoint.port) for _ in range(3)]
        wait_until(lambda: endpoint.n_connections == 3)
        status, headers, text = ask(endpoint, "GET", "/")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "too many connections" in json.loads(text)["error"]
        wait_until(lambda: endpoint.n_connections == 3)
        idle += [connect(endpoint.port) for _ in range(SPARE + 5)]
        wait_until(lambda: endpoint.n_connections == 3 + SPARE)
        for client in idle:
            client.close()
        wait_until(lambda: endpoint.n_connections == 0)
        assert ask(endpoint, "GET", "/")[0] == 200


def test_threads_do_not_grow_with_connections() -> None:
    with serving() as endpoint:
        before = threading.active_count()
        clients = [connect(endpoint.port) for _ in range(50)]
        for client in clients:
            client.sendall(REQUEST[:-1])
        wait_until(lambda: endpoint.n_connections == 50)
        assert threading.active_count() == before
        for client in clients:
            client.sendall(REQUEST[-1:])
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
            client.close()


def test_stopping_answers_what_was_sent_before() -> None:
    """Requests that were read, that lie in the socket, and of connections not accepted yet."""
    held = Held()
    with serving(model_of(translate=held)) as endpoint:
        clients = [connect(endpoint.port) for _ in range(20)]
        clients[0].sendall(REQUEST)
        wait_until(lambda: held.batches)
        clients += [connect(endpoint.port) for _ in range(20)]
        for client in clients[1:]:
            client.sendall(REQUEST)
        endpoint.stop()
        wait_until(lambda: endpoint.service.app.is_stopping)
        assert ask(endpoint, "GET", "/ready")[0] == 503
        time.sleep(0.3)
        with pytest.raises(ConnectionRefusedError):
            connect(endpoint.port).close()
        held.go.set()
        for client in clients:
            answer = read_all(client)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b'"cba"' in answer


def test_many_after_one_that_was_slow_are_answered_though_it_stops() -> None:
    """The pace of a sentence alone says nothing about that of many."""
    held, clock = Held(), mock.Mock(**{"monotonic.side_effect": count(0, 60).__next__})
    with (
        mock.patch("oaxe.serving.batcher.time", clock),  # each batch takes a minute
        serving(model_of(translate=held)) as endpoint,
    ):
        held.go.set()
        assert translate(endpoint, {"q": "a"})[0] == 200
        held.go.clear()
        clients = [connect(endpoint.port) for _ in range(40)]
        for client in clients:
            client.sendall(REQUEST)
        endpoint.stop()
        wait_until(lambda: endpoint.service.app.is_stopping)
        held.go.set()
        assert [read_all(client)[:12] for client in clients] == [b"HTTP/1.1 200"] * 40
        for client in clients:
            client.close()


def test_stopping_takes_what_would_be_refused_otherwise() -> None:
    with serving(limits=Limits(seconds=10)) as endpoint, connect(endpoint.port) as client:
        client.sendall(REQUEST[:-1])
        wait_until(lambda: endpoint._server.server_state.tasks)
        batcher = endpoint.service.batcher
        batcher._seconds, batcher._sentences, batcher._running = 50.0, 1.0, 1
        assert translate(endpoint, {"q": "a"})[0] == 503
        endpoint.stop()
        wait_until(lambda: endpoint.service.app.is_stopping)
        client.sendall(REQUEST[-1:])
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [REQUEST, REQUEST[:-1], REQUEST[:20], b""])
def test_stopping_has_a_deadline(sent: bytes) -> None:
    held = Held()
    limits = Limits(stop_seconds=0.4)
    with (
        serving(model_of(translate=held), limits=limits) as endpoint,
        connect(endpoint.port) as client,
    ):
        client.sendall(sent)
        wait_until(lambda: held.batches if sent == REQUEST else endpoint.n_connections == 1)
        start = time.monotonic()
        endpoint.stop()
        wait_until(lambda: endpoint.n_connections == 0, 5)
        assert time.monotonic() - start < 3
        held.go.set()


def test_health_is_of_the_thread_that_translates() -> None:
    with serving() as endpoint:
        assert ask(endpoint, "GET", "/health")[0] == 200
        endpoint.service.batcher.close()
        assert ask(endpoint, "GET", "/health")[0] == 503
        assert translate(endpoint, {"q": "a"})[0] == 503


def test_stopping_twice_ends_at_once() -> None:
    held = Held()
    with serving(model_of(translate=held)) as endpoint, connect(endpoint.port) as client:
        client.sendall(REQUEST)
        wait_until(lambda: held.batches)
        endpoint.stop()
        endpoint.stop()
        wait_until(lambda: endpoint.n_connections == 0, 5)
        held.go.set()


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("served")
    train_small(settings_of(make_data(folder), folder / "run"))
    return str(folder / "run")


def translate_at(address: str, sentences: list[str], model: str) -> list[str]:
    connection = HTTPConnection(address, timeout=20)
    content = json.dumps({"q": sentences, "model": model})
    connection.request("POST", "/translate", content, {"Content-Type": "application/json"})
    found: list[str] = json.loads(connection.getresponse().read())["translatedText"]
    connection.close()
    return found


SENTENCES = ["1 2 3", "", "0 1"]


def test_ctrl_c(finished_run: str) -> None:
    """Answers as the translator does, for two models, until it is interrupted."""
    translator, found = load_translator(finished_run, "cpu"), list[list[str]]()
    models = Models([named(None, "", translator), named("again", "", translator)])
    printed = queue.SimpleQueue[str]()
    console = mock.Mock(print=lambda text, **how: printed.put(text))

    def talk() -> None:
        address = printed.get(timeout=20).split(",")[0].removeprefix("http://")
        try:
            found.extend(translate_at(address, SENTENCES, model) for model in ("aa-bb", "again"))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=talk)
    thread.start()
    with mock.patch("oaxe.serving.server.log_to_stderr"):
        serve(Service(models), host="127.0.0.1", port=0, console=console)
    thread.join()
    assert found == [translator.translate(SENTENCES)] * 2
    assert any(found[0])


def test_signals_are_heard_as_soon_as_the_address_is_told() -> None:
    stop = mock.Mock(print=lambda text, **how: os.kill(os.getpid(), signal.SIGTERM))
    with mock.patch("oaxe.serving.server.log_to_stderr"):
        serve(Service(Models([model_of()])), host="127.0.0.1", port=0, console=stop)


def test_a_second_signal_does_not_wait_for_the_model() -> None:
    held, printed = Held(), queue.SimpleQueue[str]()
    held.go.set()  # for warming up
    console = mock.Mock(print=lambda text, **how: printed.put(text))

    def talk() -> None:
        port = int(printed.get(timeout=20).split(",")[0].rsplit(":", 1)[1])
        held.go.clear()
        with connect(port) as client:
            client.sendall(REQUEST)
            wait_until(lambda: len(held.batches) == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: service.app.is_stopping)
            os.kill(os.getpid(), signal.SIGINT)
            assert read_all(client) == b""

    service = Service(Models([model_of(translate=held)]))
    thread = threading.Thread(target=talk)
    thread.start()
    quiet = mock.patch("oaxe.serving.server.log_to_stderr")
    with quiet, mock.patch("os._exit") as ended, pytest.raises(SystemExit):
        serve(service, host="127.0.0.1", port=0, console=console)
    ended.assert_called_once_with(1)  # at the end of Python, a thread in C++ would abort
    thread.join()
    held.go.set()
    assert service.batcher.close(20)


def test_from_the_command_line(finished_run: str, tmp_path: Path) -> None:
    """SIGTERM answers what is in progress and exits with 0, though a slow client is there."""
    trained = load_translator(finished_run, "cpu")
    export(trained, tmp_path, length_share=0.0)
    command = [sys.executable, "-m", "oaxe", "serve", "--port", "0", "--model", finished_run]
    command += ["--model", f"exported={tmp_path}"]
    body = json.dumps({"q": "abc", "model": "exported"}).encode()
    request = head(length=len(body)) + body
    command += ["--stop-seconds", "1"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split(",")[0].removeprefix("http://")
        found = [translate_at(address, SENTENCES, name) for name in ("aa-bb", "exported")]
        slow = connect(int(address.split(":")[1]))
        slow.sendall(request[:-1])
        client = connect(int(address.split(":")[1]))
        client.sendall(request)
    finally:
        process.send_signal(signal.SIGTERM)
    assert read_all(client).startswith(b"HTTP/1.1 200 ")
    log = process.communicate(timeout=20)[1]
    assert process.returncode == 1  # of the slow client
    assert "stopped at the deadline; 1 request was not answered" in log
    assert len(re.findall('"POST /translate" 200 ', log)) == 3
    assert "Traceback" not in log
    assert found == [trained.translate(SENTENCES)] * 2
    client.close()
    slow.close()
