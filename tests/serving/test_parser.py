"""HTTP by httptools: bounds that h11 has by itself."""

import contextlib
import socket
import time

import pytest

from oaxe.serving.limits import Limits
from tests.serving.samples import head, serving, translate, wait_until
from tests.serving.test_connections import BODY, REQUEST, connect, read_all

pytest.importorskip("httptools")
CLOSE = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def test_a_head_has_bounds() -> None:
    many = head().replace(b"\r\n\r\n", b"\r\n" + b"a: b\r\n" * 300 + b"\r\n")
    with serving() as endpoint:
        with connect(endpoint.port) as client:
            client.sendall(many)
            assert read_all(client).startswith(b"HTTP/1.1 400 ")
        for start in (b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\nA: "):
            with connect(endpoint.port) as client:
                client.sendall(start)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has answered
                    for _ in range(70):  # packets of which each alone is small enough
                        client.sendall(b"a" * 1_000)
                assert read_all(client).startswith(b"HTTP/1.1 400 ")
        assert translate(endpoint, {"q": "a"})[0] == 200


def test_bodies_do_not_count_for_the_head() -> None:
    body = BODY + b" " * 100_000
    request = head(length=len(body)) + body
    with serving() as endpoint, connect(endpoint.port) as client:
        client.sendall(request + request + CLOSE)
        assert read_all(client).count(b'"cba"') == 3


def test_requests_of_a_connection_that_wait_have_a_bound() -> None:
    """Each would take memory of its own, and 200,000 bytes are thousands of requests."""
    with serving() as endpoint:
        for count, answers in ((10, 11), (200, 0)):
            with connect(endpoint.port) as client:
                client.sendall(REQUEST * count + CLOSE)
                answer = read_all(client)
                assert answer.count(b'"cba"') == answers
                assert (b"HTTP/1.1 400 " in answer) == (not answers)


def test_slow_heads_are_cut_though_they_are_small() -> None:
    with serving(limits=Limits(seconds=0.3)) as endpoint, connect(endpoint.port) as client:
        start = time.monotonic()
        client.sendall(REQUEST[:30])
        assert read_all(client).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - start < 5


def test_who_hangs_up_with_requests_that_wait_leaves_nothing_behind() -> None:
    with serving() as endpoint:
        with connect(endpoint.port) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            rude.sendall(REQUEST * 10)
        wait_until(lambda: endpoint.n_connections == 0)
        wait_until(lambda: not endpoint._server.server_state.tasks)
        assert translate(endpoint, {"q": "a"})[0] == 200
