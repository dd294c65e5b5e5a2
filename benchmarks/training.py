"""CPU or GPU: the whole trainer against its arithmetic alone and against a plain PyTorch loop."""

import gc
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer

from benchmarks import gpu
from benchmarks.arithmetic import flop_of_a_token
from benchmarks.experiment import Experiment
from benchmarks.harness import Data, JsonPath, Report, Seed, Vocab
from benchmarks.loops import PLAIN_SYSTEMS, Plain, Turn, Whole, run_for, summed_up
from benchmarks.side_by_side import together
from benchmarks.teacher import BEAM, distil
from oaxe.commands.options import Overrides
from oaxe.model.transformer import SIZES
from oaxe.support.devices import usable_device
from oaxe.support.errors import UserError
from oaxe.support.timing import Timing
from oaxe.systems import System
from oaxe.text.corpus import Corpus
from oaxe.text.plans import Limits, plan_epoch, plan_packed, shape_of
from oaxe.training.settings import Settings

FIRST, LATER, PLAIN = "trainer, first epoch", "trainer, later", "plain PyTorch loop"
START, ROUNDS = 3, 3  # updates that compute, record and replay; turns of each loop
LONGEST_EPOCH = 10.0  # seconds; a longer first epoch is measured that long
RATE, OF_FLOOR, OF_PLAIN = "target tokens/s", "share of floor", "x plain"
DEFAULT_SIZES = ("small", "base", "big")
DEFAULT_UPDATES = (8_192, 16_384, 32_768, 131_072)


def training(
    system: Annotated[str, typer.Option(help="As model.system of a configuration.")] = "cmlm",
    loss: Annotated[str | None, typer.Option(help="Of a CMLM: xe, oaxe, axe. Default: xe.")] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Can be repeated. Default: small, base, big.")
    ] = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Target tokens of an update. Can be repeated. Default: 8K, 16K, 32K and 128K.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE:TOKENS", help="Leave this one out. Can be repeated."),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens of a batch; an update may have several.")
    ] = 32_768,
    data: Data = None,
    vocab: Vocab = 32_000,
    corpus_tokens: Annotated[
        int, typer.Option(min=1, help="Target tokens of the synthetic corpus.")
    ] = 2_000_000,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for each loop, in turns.")] = 3.0,
    processes: Annotated[
        int, typer.Option(min=1, help="Also measure so many trainers at a time on the device.")
    ] = 1,
    sentences: Annotated[
        int, typer.Option(min=0, help="Sentences that a teacher translates; 0: none.")
    ] = 2_048,
    changes: Overrides = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda if found.")] = None,
    seed: Seed = 1,
    json: JsonPath = None,
) -> None:
    """CPU or GPU: the whole trainer against its arithmetic alone and a plain PyTorch loop.

    Validation and checkpoints are left out: their frequency is a setting. A system that changes
    over the run is measured as it begins. `python -m benchmarks page` makes tables and a picture.
    """
    sizes, updates = size or list(DEFAULT_SIZES), tokens or list(DEFAULT_UPDATES)
    if unknown := set(sizes) - SIZES.keys():
        raise UserError(f"--size must be one of {', '.join(SIZES)}, got {', '.join(unknown)}")
    device = usable_device(device)
    if device not in ("cpu", "cuda"):
        raise UserError(f"--device must be cpu or cuda, got {device}; CUDA_VISIBLE_DEVICES chooses")
    if loss is None and system == "cmlm":
        loss = "xe"
    experiment = Experiment(
        system, loss, data, vocab, corpus_tokens, batch_tokens, device, seed, changes or ()
    )
    limits: dict[str, Any] = gpu.ceilings() if device == "cuda" else {"device": device}
    about: dict[str, Any] = {
        "system": system,
        "loss": loss,
        "changes": changes,
        "vocab": experiment.vocab_size,
    }
    about |= {"data": str(data or "synthetic"), "batch_tokens": batch_tokens, "seconds": seconds}
    report = Report(json, **about, **limits, seed=seed)
    left_out = {tuple(pair.rpartition(":")[::2]) for pair in without or ()}
    failed: dict[str, str] = {}

    add_padding(report, experiment, updates)
    for one in sizes:
        release_memory()
        grid = [n for n in updates if (one, str(n)) not in left_out]
        with going_on(failed, one):
            measure_size(report, experiment, one, grid, seconds, limits, failed)
        release_memory()
        if processes > 1 and grid:
            with going_on(failed, f"{one}, {processes} processes"):
                rate = together(experiment, one, min(grid), processes, seconds)
                name = f"{one}, {min(grid):,} tokens an update"
                report.add(
                    f"{one}, {processes} processes at a time", {}, {RATE: {name: rate}},
                    kind="processes", size=one, update_tokens=min(grid), processes=processes,
                )  # fmt: skip
        if sentences:
            with going_on(failed, f"{one}, beam {BEAM}"):
                add_distillation(report, experiment, one, sentences)
    if failed:
        report.add("left out", {}, {}, kind="failed", **failed)


@contextmanager
def going_on(failed: dict[str, str], name: str) -> Iterator[None]:
    """What fails, for want of memory above all, is named and left out."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"[:300]
    if name in failed:
        release_memory()  # not before the traceback is gone, which holds some


def release_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure_size(
    report: Report,
    experiment: Experiment,
    size: str,
    updates: list[int],
    seconds: float,
    limits: dict[str, Any],
    failed: dict[str, str],
) -> None:
    """A model of this size with each of these updates."""
    corpus, model, floor = experiment.corpus, None, math.nan  # floor: tokens a second
    for update_tokens in updates:
        name = f"{size}, {update_tokens:,} tokens an update"
        release_memory()
        with going_on(failed, name), tempfile.TemporaryDirectory() as folder:
            settings = experiment.settings(size, update_tokens, folder)
            if model is None:
                model = experiment.new_system(settings)
                flop = flop_of_a_token(model, corpus)
                floor = limits.get("flop_per_second", math.nan) / (flop or math.nan)
            turns, more = measure(report, experiment, settings, model, corpus, seconds, failed)
            add_turns(
                report, name, turns, floor,
                kind="training", size=size, update_tokens=update_tokens, **more,
            )  # fmt: skip


def measure(
    report: Report,
    experiment: Experiment,
    settings: Settings,
    model: System,
    corpus: Corpus,
    seconds: float,
    failed: dict[str, str],
) -> tuple[dict[str, list[Turn]], dict[str, Any]]:
    """Turns of every loop, and more about the trainer.

    A first trainer compiles what there is to compile; the one that is measured begins anew.
    """
    ranks = experiment.ranks
    start = seconds_to_start(Whole(settings, model, corpus, ranks, report.console), ranks.device)
    release_memory()
    whole = Whole(settings, model, corpus, ranks, report.console)
    plain: Plain | None = None
    try:
        position = whole.trainer.position
        first = run_for(whole, ranks.device, LONGEST_EPOCH, lambda _: position.epoch > 0)
        turns: dict[str, list[Turn]] = {FIRST: [first], LATER: [], PLAIN: []}
        no_plain = f"{settings.model.size}, {settings.data.update_tokens:,}, {PLAIN}"
        if experiment.system in PLAIN_SYSTEMS:
            with going_on(failed, no_plain):
                plain = Plain(settings, model, corpus, ranks)
                run_for(plain, ranks.device, enough=lambda updates: updates >= START)
        for _ in range(ROUNDS):
            turns[LATER].append(run_for(whole, ranks.device, seconds / ROUNDS))
            if plain is not None and no_plain not in failed:
                with going_on(failed, no_plain):
                    turns[PLAIN].append(run_for(plain, ranks.device, seconds / ROUNDS))
        if no_plain in failed:
            turns[PLAIN].clear()
        more = {
            "seconds_to_start": start,
            "updates_of_first_epoch": first.updates,
            "whole_first_epoch": position.epoch > 0,
            "share_waiting_for_data": sum(t.waited for t in turns[LATER])
            / sum(t.seconds for t in turns[LATER]),
            "recorded": whole.recorded,
        }
    finally:
        whole.close()
        if plain is not None:
            plain.close()
    return {name: taken for name, taken in turns.items() if taken}, more


def seconds_to_start(loop: Whole, device: torch.device) -> float:
    """Seconds of the first updates, which compute, record and replay; kernels are compiled, too."""
    try:
        return run_for(loop, device, enough=lambda updates: updates >= START).seconds
    finally:
        loop.close()


def add_turns(
    report: Report, title: str, turns: dict[str, list[Turn]], floor: float, **about: Any
) -> None:
    timings, rate = summed_up(turns)
    columns = {RATE: rate}
    if PLAIN in rate:
        columns[OF_PLAIN] = {name: value / rate[PLAIN] for name, value in rate.items()}
    if math.isfinite(floor):
        columns[OF_FLOOR] = {name: value / floor for name, value in rate.items()}
        about["floor_tokens_per_second"] = floor
    report.add(title, timings, columns, **about)


def add_padding(report: Report, experiment: Experiment, updates: list[int]) -> None:
    """Places that are computed for no token, in either plan of the first epoch."""
    corpus = experiment.corpus
    lengths = corpus.source_lengths, corpus.target_lengths
    real = int(lengths[0].sum()) + len(corpus) + int(lengths[1].sum())
    padded, packed = {}, {}
    for update_tokens in updates:
        name = f"{update_tokens:,} tokens an update"
        limits = Limits(experiment.batch_tokens, update_tokens, experiment.seed, epoch=0)
        batches = [b for update in plan_epoch(*lengths, limits) for b in update]
        places = sum(len(b) * (int(lengths[0][b].max()) + 1) for b in batches)
        places += sum(len(b) * int(lengths[1][b].max()) for b in batches)
        padded[name] = 1 - real / places
        plan = plan_packed(*lengths, limits)
        room = shape_of(plan, *lengths).room
        packed[name] = 1 - real / (sum(map(len, plan)) * (room.source + room.target))
    report.add(
        "padding", {}, {"padded plan": padded, "packed plan": packed},
        kind="padding", sentences=len(corpus), target_tokens=int(lengths[1].sum()),
        mean_source=float(lengths[0].mean()), mean_target=float(lengths[1].mean()),
    )  # fmt: skip


def add_distillation(report: Report, experiment: Experiment, size: str, sentences: int) -> None:
    found = distil(experiment, size, sentences)
    timings = {"first pass": Timing([found.first]), "later passes": found.later}
    n = found.n_sentences
    report.add(
        f"{size}, beam {BEAM}", timings,
        {
            "sentences/s": {name: n / t.median for name, t in timings.items()},
            RATE: {name: n * found.target_length / t.median for name, t in timings.items()},
        },
        kind="distillation", size=size, beam=BEAM, sentences=n,
        mean_source=found.source_length, mean_target=found.target_length,
    )  # fmt: skip
