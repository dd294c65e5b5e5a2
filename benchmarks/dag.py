"""CPU or GPU: training a DAG against training a CMLM with XE, and against plain PyTorch."""

import tempfile
from collections.abc import Callable
from typing import Annotated

import torch
import typer

from benchmarks.experiment import Experiment
from benchmarks.harness import Data, JsonPath, Report, Seed, Size, Tokens, Vocab
from benchmarks.loops import Loop, Turn, Whole, run_for, summed_up
from benchmarks.plain_graph import PlainDAG
from benchmarks.training import RATE, ROUNDS, START, going_on, release_memory
from oaxe.support.devices import usable_device

CMLM, OWN, PLAIN = "CMLM with XE", "DAG", "DAG, plain PyTorch"
LONGEST_START = 30.0  # seconds; within two epochs every shape is recorded


def dag(
    tokens: Tokens = 16_384,
    size: Size = "base",
    vertices: Annotated[int, typer.Option(min=2, help="For each source token.")] = 4,
    batch_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a batch.")] = 32_768,
    data: Data = None,
    vocab: Vocab = 32_000,
    corpus_tokens: Annotated[
        int, typer.Option(min=1, help="Target tokens of the synthetic corpus.")
    ] = 500_000,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for each contender.")] = 3.0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda if found.")] = None,
    seed: Seed = 1,
    json: JsonPath = None,
) -> None:
    """CPU or GPU: the training of a DAG against that of a CMLM and a DAG in plain PyTorch.

    All see the same sentences; times are compared for the same number of target tokens.
    """
    device = usable_device(device)
    report = Report(json, size=size, vertices=vertices, vocab=vocab, data=str(data), seed=seed)
    turns: dict[str, list[Turn]] = {}
    memory: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name in (CMLM, OWN, PLAIN):
        system = "cmlm" if name == CMLM else "dag"
        changes = [] if name == CMLM else [f"dag.vertices={vertices}", "dag.end=0.5"]
        experiment = Experiment(
            system, "xe" if name == CMLM else None, data, vocab, corpus_tokens, batch_tokens,
            device, seed, changes,
        )  # fmt: skip
        release_memory()
        with going_on(failed, name), tempfile.TemporaryDirectory() as folder:
            settings = experiment.settings(size, tokens, folder)
            model = experiment.new_system(settings)
            given = settings, model, experiment.corpus, experiment.ranks
            loop = PlainDAG(*given) if name == PLAIN else Whole(*given, report.console)
            turns[name], memory[name] = measure(loop, experiment.ranks.device, seconds)
    add(report, turns, memory, failed, tokens)


def measure(
    loop: Whole | PlainDAG, device: torch.device, seconds: float
) -> tuple[list[Turn], float]:
    """Turns after the start, and the peak memory in GiB of all of it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        run_for(loop, device, LONGEST_START, started(loop))
        turns = [run_for(loop, device, seconds / ROUNDS) for _ in range(ROUNDS)]
    finally:
        loop.close()
    on_gpu = device.type == "cuda"
    return turns, torch.cuda.max_memory_allocated() / 2**30 if on_gpu else float("nan")


def started(loop: Loop) -> Callable[[int], bool]:
    """A trainer has recorded what there is to record after two epochs."""
    if isinstance(loop, Whole) and loop.recorded:
        position = loop.trainer.position
        return lambda _: position.epoch >= 2
    return lambda updates: updates >= START


def add(
    report: Report,
    turns: dict[str, list[Turn]],
    memory: dict[str, float],
    failed: dict[str, str],
    tokens: int,
) -> None:
    timings, rate = summed_up(turns)
    columns = {RATE: rate, "GiB": memory}
    for baseline, header in ((CMLM, "x CMLM's time"), (OWN, "x our time")):
        if baseline in rate:
            columns[header] = {name: rate[baseline] / value for name, value in rate.items()}
    report.add("DAG", timings, columns, update_tokens=tokens, failed=failed)
