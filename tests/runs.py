"""Small training runs for tests: digit strings to reverse, a model of a few thousand weights."""

import io
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # what torch imports at the first optimizer: here once, in the fork server
import torch.utils.tensorboard
from rich.console import Console
from torch import Tensor

from oaxe.model.statistics import Statistics
from oaxe.model.transformer import SIZES, Size
from oaxe.support.errors import UserError
from oaxe.systems import Example, Progress, cmlm
from oaxe.text.prepare import prepare
from oaxe.training.checkpoint import load_newest
from oaxe.training.run import train
from oaxe.training.settings import Settings, build_settings

# Forks of a process that has imported all this: a start takes milliseconds, not seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.runs"])

# Changes for settings_of.
OAXE = {"cmlm__loss": {"name": "oaxe", "truncation": 0.05}, "cmlm__inputs": "partial-all"}
ANNEALED = {"cmlm__loss": "oaxe", "cmlm__annealing": True}
SMALL = Size(dim=16, ffn=32, heads=2, encoder_layers=1, decoder_layers=1)


def make_data(
    folder: Path, *, pairs: int = 160, valid: int = 12, test: int = 0, digits: str = "0123456789"
) -> Path:
    """A prepared folder: random digits, and the same in reverse."""
    rng = random.Random(1)
    files = {}
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", pairs), ("valid", valid), ("test", test)):
        lines = [rng.choices(digits, k=rng.randint(2, 9)) for _ in range(count)]
        files[split] = folder / f"{split}.src", folder / f"{split}.tgt"
        files[split][0].write_text("".join(" ".join(line) + "\n" for line in lines))
        files[split][1].write_text("".join(" ".join(line[::-1]) + "\n" for line in lines))
    prepare(
        folder / "data",
        source_language="aa",
        target_language="bb",
        train=files["train"],
        valid=files["valid"],
        test=files["test"] if test else None,
        vocab_size=8 + 2 * len(digits),
    )
    return folder / "data"


def settings_of(data: Path, run: Path, **changes: Any) -> Settings:
    """Settings of a run of 24 updates, changed by ``section__key=value``.

    For example ``model__system="ctc"``, ``cmlm__loss={"name": "oaxe", "truncation": 0.05}``.
    """
    content: dict[str, Any] = {
        "run": str(run),
        "data": {"folder": str(data), "update_tokens": 200, "batch_tokens": 120},
        "model": {"size": "tiny", "dropout": 0.1, "max_length": 32},
        "optim": {"lr": 3e-3, "warmup": 10},
        "validation": {"every": 5, "keep": 2, "average": 2},
        "train": {"steps": 24, "save_every": 4, "log_every": 3},
    }
    for name, value in changes.items():
        section, key = name.split("__")
        content.setdefault(section, {})[key] = value
    if content["model"].get("system", "cmlm") == "cmlm":
        content.setdefault("decoding", {}).setdefault("length_candidates", 2)
    return build_settings(content)


def train_small(settings: Settings) -> tuple[dict[str, Any], str]:
    """Train on one thread; returns the result and what was printed."""
    threads, printed = torch.get_num_threads(), io.StringIO()
    torch.set_num_threads(1)
    try:
        with mock.patch.dict(SIZES, tiny=SMALL):
            return train(settings, Console(file=printed, width=500)), printed.getvalue()
    finally:
        torch.set_num_threads(threads)


def start(settings: Settings, die_at_sync: int = 0) -> ForkServerProcess:
    """The same in a process of its own; it kills itself at the n-th time that it syncs a file."""
    process = FORKS.Process(target=_work, args=(settings, die_at_sync))
    process.start()
    return process


def train_on_ranks(
    settings: Settings, world_size: int = 2, *, poisoned_rank: int | None = None
) -> list[str]:
    """One process for each rank, one of which may meet a loss of nan; the error of each, or ""."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(world_size)}
    answers, ranks = FORKS.SimpleQueue(), []
    for rank in range(world_size):
        poisoned = rank == poisoned_rank
        environment = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(FORKS.Process(target=_rank, args=(settings, environment, poisoned, answers)))
        ranks[-1].start()
    for process in ranks:
        process.join(60)
    assert all(process.exitcode == 0 for process in ranks)
    return [text for _, text in sorted(answers.get() for _ in ranks)]


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@contextmanager
def dying_at_sync(die_at: int) -> Iterator[None]:
    """The process kills itself at the n-th time that it syncs a file; 0: never."""
    sync, count = os.fsync, itertools.count(1)

    def counting(descriptor: int) -> None:
        if next(count) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    with mock.patch("os.fsync", counting):
        yield


def _work(settings: Settings, die_at_sync: int) -> None:
    with dying_at_sync(die_at_sync):
        train_small(settings)


def _rank(settings: Settings, environment: dict[str, str], poisoned: bool, answers: Any) -> None:
    os.environ |= environment
    message, forward, calls = "", cmlm.Model.forward, itertools.count(1)

    def nan_at_last(
        self: cmlm.Model, example: Example, progress: Progress
    ) -> tuple[Tensor, Statistics]:
        loss, statistics = forward(self, example, progress)
        return loss * (float("nan") if poisoned and next(calls) > 5 else 1.0), statistics

    try:
        with mock.patch.object(cmlm.Model, "forward", nan_at_last):
            train_small(settings)
    except UserError as error:
        message = str(error)
    answers.put((environment["RANK"], message))


def final_tensors(run: Path) -> dict[str, Tensor]:
    """Weights and Adam's state of the newest checkpoint."""
    found = load_newest(run / "checkpoints", warn=print)
    assert found is not None
    return {f"{group}.{name}": t for group, ts in found[1].items() for name, t in ts.items()}


def metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run, without what depends on the clock."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        for clock in ("seconds", "tokens_per_second"):
            record.pop(clock, None)
    return records


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def end_despite_kills(
    work: Callable[..., object], given: tuple[Any, ...], *, kills: int, longest: float
) -> None:
    """Start the work again and again, killed after up to ``longest`` seconds; at last not."""
    rng, killed, exitcode = random.Random(os.getpid()), 0, None  # other moments every time
    while exitcode != 0:
        process = FORKS.Process(target=work, args=given)
        process.start()
        process.join(rng.uniform(0, longest) if killed < kills else None)
        if process.is_alive():
            process.kill()
            process.join()
            killed += 1
        exitcode = process.exitcode
        assert exitcode in (0, -signal.SIGKILL)
    assert killed > 0
