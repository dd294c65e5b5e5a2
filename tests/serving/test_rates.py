"""How often a client may ask."""

import random

import pytest

from oaxe.serving import rates
from oaxe.serving.guard import Access
from oaxe.serving.limits import Limits
from oaxe.serving.rates import Rates
from tests.serving.samples import ask, serving, translate


def test_a_client_has_its_share_of_every_minute() -> None:
    now, rng = 0.0, random.Random(1)
    found = Rates(6, lambda: now)
    asked = list[float]()
    for _ in range(2_000):
        now += rng.expovariate(1 / 4)  # more often than allowed
        wait = found.seconds_to_wait("a")
        if not wait:
            asked.append(now)
            continue
        assert 0 < wait <= 10
        now += wait + 1e-6
        assert found.seconds_to_wait("a") == 0  # as was said
        asked.append(now)
    assert len(asked) / now * 60 == pytest.approx(6, rel=0.05)
    for i in range(len(asked) - 12):  # six that were left, and six of the minute
        assert asked[i + 12] - asked[i] > 60 - 1e-3


def test_clients_do_not_share_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_CLIENTS", 3)
    found = Rates(1, lambda: 0.0)
    assert [found.seconds_to_wait(name) for name in "abca"] == [0, 0, 0, 60]
    assert found.seconds_to_wait("d") == 0  # b, which asked first of those left, is forgotten
    assert [found.seconds_to_wait(name) for name in "ab"] == [60, 0]
    assert Rates(0).seconds_to_wait("a") == 0


def test_too_many_requests_are_told_when_to_come_back() -> None:
    access = Access(api_keys=["one", "two"])
    with serving(limits=Limits(requests=2), access=access) as endpoint:
        statuses = [translate(endpoint, {"q": "a", "api_key": "one"})[0] for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert translate(endpoint, {"q": "a", "api_key": "two"})[0] == 200
        assert translate(endpoint, {"q": "a"})[0] == 401  # which counts for nobody
        body, kind = b'{"q": "a", "api_key": "one"}', {"Content-Type": "application/json"}
        status, headers, text = ask(endpoint, "POST", "/translate", body, kind)
        assert status == 429
        assert 1 <= int(headers["Retry-After"]) <= 30
        assert "at most 2 requests a minute" in text
        assert ask(endpoint, "GET", "/languages")[0] == 200  # only translating counts
    with serving(limits=Limits(requests=1)) as endpoint:
        assert [translate(endpoint, {"q": "a"})[0] for _ in range(2)] == [200, 429]
