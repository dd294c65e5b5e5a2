"""A server under load and under attack, on this machine only, for a bounded time.

Speed: clients that ask again as soon as they have an answer, against the batch translator in the
same run, in sentences a second and in processor time of a sentence. Then what must hold: no answer
but those that are documented, slow clients cut, memory bounded, and an answer for everything that
was sent before SIGTERM.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any

import typer

from benchmarks.clients import (
    Answer,
    Client,
    Tally,
    ask_and_stop,
    asking,
    closed_loop,
    encoded,
    fuzz,
    hold_connections,
    slow_clients,
)
from benchmarks.harness import JsonPath, Report, Seed
from oaxe.support.errors import UserError
from oaxe.text.lines import Lines
from oaxe.training.run import load_translator

MAX_SECONDS = 5.0  # of a request, in these tests
SPARE = 150  # connections beyond the limit


def serve(
    model: Annotated[str, typer.Option(help="Folder of a run or of a saved model.")],
    text: Annotated[Path, typer.Option(help="Sentences to translate, one a line.", dir_okay=False)],
    clients: Annotated[int, typer.Option(min=1, help="Clients of the closed loop.")] = 64,
    seconds: Annotated[float, typer.Option(min=1, help="Time of each closed loop.")] = 60,
    requests: Annotated[int, typer.Option(min=1, help="Requests with wrong values.")] = 20_000,
    slow: Annotated[int, typer.Option(min=1, help="Clients that send a byte a second.")] = 200,
    connections: Annotated[
        int, typer.Option(min=1, help="Connections that are allowed, and held.")
    ] = 500,
    seed: Seed = 0,
    json: JsonPath = None,
) -> None:
    """CPU or GPU: latency and throughput of the server, and what it does under attack."""
    sentences = [line for line in islice(iter(Lines(text).read, None), 2_000) if line.strip()]
    if not sentences:
        raise UserError(f"there is no sentence in {text}")
    report = Report(json, model=model, sentences=len(sentences), clients=clients, seed=seed)
    with TemporaryFile("w+") as errors:
        with running(model, connections, errors) as (process, port):
            speed(report, model, sentences, port, clients, seconds)
            attack(report, sentences, process, port, (requests, slow, connections), seed)
        errors.seek(0)
        if said := errors.read():
            raise UserError(f"the server wrote to its log:\n{said[:2_000]}")


@contextmanager
def running(
    model: str, connections: int, errors: IO[str]
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`oaxe serve` on a free port; what it writes to standard error."""
    command = [sys.executable, "-m", "oaxe", "serve", "--model", model, "--port", "0"]
    command += ["--max-seconds", str(MAX_SECONDS), "--max-connections", str(connections)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--no-access-log"],
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            errors.seek(0)
            raise UserError(f"the server did not start: {errors.read()}")
        try:
            yield process, int(line.split(",")[0].rsplit(":", 1)[1])
        finally:
            process.kill()


def speed(
    report: Report, model: str, sentences: list[str], port: int, clients: int, seconds: float
) -> None:
    """The batch translator before and after the server: the machine may have other work."""
    translator = load_translator(model, None)
    translator.translate(sentences[:64])
    rates = dict[str, float]()
    columns: dict[str, dict[str, float]] = {"p50, ms": {}, "p99, ms": {}, "503": {}}
    server, own = dict[str, float](), dict[str, float]()  # processor milliseconds of a sentence

    def translate(name: str) -> None:
        start, used = time.perf_counter(), time.process_time()
        translator.translate(sentences)
        rates[name] = len(sentences) / (time.perf_counter() - start)
        own[name] = 1e3 * (time.process_time() - used) / len(sentences)

    translate("batch translator, before")
    loops = {"1 client": (1, 1), f"{clients} clients": (clients, 1)}
    loops[f"{clients} clients, 16 each"] = clients, 16
    for name, (count, size) in loops.items():
        parts = [sentences[i : i + size] for i in range(0, len(sentences), size)]
        requests = cycle([asking(part, split=False) for part in parts if len(part) == size])
        before, used = process_metrics(port)["cpu_seconds_total"], time.process_time()
        tally = asyncio.run(closed_loop(port, count, seconds, requests.__next__))
        used = time.process_time() - used
        answered = size * len(tally.seconds)
        rates[name], own[name] = answered / seconds, 1e3 * used / answered
        server[name] = 1e3 * (process_metrics(port)["cpu_seconds_total"] - before) / answered
        columns["p50, ms"][name] = 1e3 * tally.percentile(50)
        columns["p99, ms"][name] = 1e3 * tally.percentile(99)
        columns["503"][name] = tally.statuses[503]
        complain(name, tally)
    translate("batch translator, after")
    mean = (rates["batch translator, before"] + rates["batch translator, after"]) / 2
    ratio = {name: rates[name] / mean for name in loops}
    columns |= {"CPU there": server, "CPU here": own, "ratio": ratio}
    report.add("speed", {}, {"rate": rates, **columns})


def attack(
    report: Report,
    sentences: list[str],
    process: subprocess.Popen[str],
    port: int,
    sizes: tuple[int, int, int],
    seed: int,
) -> None:
    """Each kind of client in turn; the server is stopped by the last.

    Args:
        sizes: wrong requests, slow clients, and connections that are allowed.
    """
    requests, slow, connections = sizes
    document = json.loads(fetch(port, "/openapi.json"))
    ordinary = asking(sentences[0])
    several = asking(sentences[:64], split=False)  # all threads must have time for them
    largest = asking(("\ufdfa" * 17 + "! ") * 1_000)  # 18 letters each, once normalised
    attacks: dict[str, Callable[[], Coroutine[Any, Any, Tally]]] = {
        "wrong values": lambda: fuzz(port, document, requests, seed),
        "largest requests": lambda: closed_loop(port, 32, 5, lambda: largest),
        "largest requests, again": lambda: closed_loop(port, 32, 5, lambda: largest),
        "slow clients": lambda: slow_clients(port, slow, ordinary, 3 * MAX_SECONDS),
        "slow clients, again": lambda: slow_clients(port, slow, ordinary, 3 * MAX_SECONDS),
        "connections": lambda: hold_connections(port, connections),
        "too many connections": lambda: hold_connections(port, connections + SPARE),
    }
    tallies, idle = dict[str, Tally](), {"before": at_rest(port, several)}
    for name, run in attacks.items():
        tallies[name] = asyncio.run(run())
        idle[name] = at_rest(port, several)
    busy = asking(sentences[:2], split=False)

    def stop() -> None:
        process.send_signal(signal.SIGTERM)

    tallies["SIGTERM while busy"] = asyncio.run(ask_and_stop(port, 200, busy, stop))
    start = time.perf_counter()
    code = process.wait(60)
    for name, tally in tallies.items():
        report.console.print(f"{name}: {tally.shown()}")
    columns: dict[str, dict[str, float]] = {
        "answers": {name: sum(t.statuses.values()) for name, t in tallies.items()}
    }
    columns["wrong"] = {name: len(tally.wrong) for name, tally in tallies.items()}
    columns |= {unit: {n: found[unit] for n, found in idle.items()} for unit in idle["before"]}
    report.add("attacks", {}, columns)
    ended = time.perf_counter() - start
    report.console.print(f"ended with {code}, {ended:.1f} s after the last answer")
    for name, tally in tallies.items():
        complain(name, tally)
    if code != 0:
        raise UserError(f"the server ended with {code}; expected 0")


def complain(name: str, tally: Tally) -> None:
    if tally.wrong:
        raise UserError(f"{name}: {len(tally.wrong)} wrong answers, such as {tally.wrong[0]}")


def fetch(port: int, path: str) -> bytes:
    return asyncio.run(ask_once(port, encoded("GET", path))).body


async def ask_once(port: int, request: bytes) -> Answer:
    client = Client(port)
    answer = await client.ask(request)
    client.close()
    return answer


def at_rest(port: int, request: bytes) -> dict[str, float]:
    """Memory and descriptors of the server, once it has time for a request."""
    for _ in range(60):
        if asyncio.run(ask_once(port, request)).status == 200:
            break
        time.sleep(1)
    time.sleep(1)  # until connections are closed
    metrics = process_metrics(port)
    return {
        "MiB afterwards": metrics["resident_memory_bytes"] / 2**20,
        "open files": metrics["open_fds"],
    }


def process_metrics(port: int) -> dict[str, float]:
    found = re.findall(r"\nprocess_(\w+) (\S+)", fetch(port, "/metrics").decode())
    return {name: float(value) for name, value in found}
