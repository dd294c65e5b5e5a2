"""The clients of the benchmark, for a moment: what must hold holds, and they see what does not."""

import asyncio
import json

from benchmarks.clients import (
    Client,
    ask_and_stop,
    asking,
    closed_loop,
    encoded,
    fuzz,
    hold_connections,
    slow_clients,
)
from oaxe.serving.connections import SPARE
from oaxe.serving.limits import Limits
from tests.serving.samples import ask, model_of, serving


def test_wrong_values_are_answered_as_documented() -> None:
    with serving(access_log=False) as endpoint:
        document = json.loads(ask(endpoint, "GET", "/openapi.json")[2])
        tally = asyncio.run(fuzz(endpoint.port, document, 400, seed=1))
        assert tally.wrong == []
        assert sum(tally.statuses.values()) == 400
        assert {200, 400, 404, 405, 413, 415} <= set(tally.statuses)
        del document["paths"]["/translate"]["post"]["responses"]["400"]
        assert asyncio.run(fuzz(endpoint.port, document, 50, seed=1)).wrong


def test_closed_loop_counts_answers() -> None:
    with serving(access_log=False) as endpoint:
        request = asking(["A dog.", "Yes"])
        tally = asyncio.run(closed_loop(endpoint.port, 8, 0.3, lambda: request))
        assert tally.wrong == []
        assert tally.statuses == {200: len(tally.seconds)}
        assert 0 < tally.percentile(50) <= tally.percentile(99) < 10
        wrong = encoded("POST", "/translate", b"{}")
        assert asyncio.run(closed_loop(endpoint.port, 1, 0.1, lambda: wrong)).wrong == [
            "status 400"
        ]
        answer = asyncio.run(Client(endpoint.port).ask(request))
        assert json.loads(answer.body)["translatedText"] == [".god A", "seY"]


def test_slow_and_many_clients_do_no_harm() -> None:
    limits = Limits(seconds=0.5, connections=10)
    with serving(limits=limits, access_log=False) as endpoint:
        tally = asyncio.run(slow_clients(endpoint.port, 5, asking("a"), 10))
        assert (tally.wrong, tally.statuses) == ([], {408: 5})
        tally = asyncio.run(hold_connections(endpoint.port, 10 + SPARE + 5))
        assert tally.wrong == []
        assert (tally.statuses[200], tally.statuses[503], tally.statuses[0]) == (10, SPARE, 5)


def test_everything_sent_before_the_end_is_answered() -> None:
    with serving(model_of(), access_log=False) as endpoint:
        tally = asyncio.run(ask_and_stop(endpoint.port, 40, asking("a"), endpoint.stop))
        assert (tally.wrong, tally.statuses) == ([], {200: 40})
