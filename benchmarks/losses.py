"""``oaxe bench losses``: the matching of a whole batch, and the training step around it.

The matching is timed alone: the batches of every solver, ours too, are built before.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from benchmarks.matching_peers import Problems, installed_peers
from oaxe.losses import assignment_backend, linear_assignment, oaxe_loss, xe_loss
from oaxe.support.environment import environment, machine
from oaxe.support.timing import Timing, take_turns, wall_clock

OURS = "oaxe.linear_assignment"
PADDED = 8_192  # places in a padded batch of the matching
STEP_PADDED = 2_048  # places in the batch of the training step


def run(
    *,
    tokens: int,
    repeats: int,
    steps: int,
    threads: int | None,
    seed: int,
    json_path: Path | None,
    console: Console,
) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    result: dict[str, Any] = {"environment": environment(), "seed": seed}
    console.print(", ".join(f"{name} {value}" for name, value in machine().items()))
    result["matching"] = bench_matching(tokens, repeats, seed, console)
    if steps:
        result["step"] = bench_step(steps, seed, console)
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=2) + "\n")


def bench_matching(tokens: int, repeats: int, seed: int, console: Console) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    problems = [costs_like_a_nat(rng, n) for n in text_lengths(rng, tokens)]
    batches = padded_batches(problems)
    solvers = {
        name: partial(peer.solve, peer.arrange(problems))
        for name, peer in installed_peers().items()
    }
    contenders: dict[str, Callable[[], object]] = {
        OURS: lambda: [linear_assignment(cost, mask) for cost, mask in batches],
        **solvers,
    }
    timings = measure(contenders, repeats, "matching", console)
    totals = {OURS: total_cost(problems, ours_unpadded(batches))}
    totals |= {name: total_cost(problems, solve()) for name, solve in solvers.items()}

    scipy_median = timings["scipy loop"].median
    table = Table(
        title=f"Matching: {len(problems)} sentences, {sum(map(len, problems))} tokens, longest "
        f"{max(map(len, problems))}; ours in {assignment_backend()}",
        title_justify="left",
    )
    table.add_column("solver", no_wrap=True)
    for header in ("µs each", "batch, ms", "spread, ms", "x scipy", "total cost"):
        table.add_column(header, justify="right")
    for name, timing in timings.items():
        table.add_row(
            name,
            f"{timing.median / len(problems) * 1e6:.1f}",
            f"{timing.median * 1e3:.1f}",
            timing.spread,
            f"{scipy_median / timing.median:.2f}",
            f"{totals[name]:.0f}",
        )
    console.print(table)
    return {
        "sentences": len(problems),
        "tokens": sum(map(len, problems)),
        "longest": max(map(len, problems)),
        "backend": assignment_backend(),
        "solvers": {
            name: {
                "seconds": timing.seconds,
                "microseconds_per_sentence": timing.median / len(problems) * 1e6,
                "times_scipy_speed": scipy_median / timing.median,
                "total_cost": totals[name],
            }
            for name, timing in timings.items()
        },
    }


def bench_step(steps: int, seed: int, console: Console) -> dict[str, Any]:
    """Forward, loss, backward and update of a small Transformer: plain XE against our losses."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    vocab, dim = 8_000, 256
    target = sentences_of_like_length(rng, STEP_PADDED, vocab)
    source = target.clamp(min=0).roll(1, dims=1)
    model = SmallTransformer(vocab, dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
        optimizer.zero_grad()
        loss_of(model(source, target.shape[1]), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    plain = "F.cross_entropy"
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        plain: lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()),
        "oaxe.xe_loss": xe_loss,
        "oaxe.oaxe_loss": oaxe_loss,
        "oaxe.oaxe_loss, truncated": lambda logits, y: oaxe_loss(logits, y, truncation=0.15),
    }
    timings = measure(
        {name: partial(step, loss) for name, loss in losses.items()},
        steps,
        "training step",
        console,
    )
    ratios = paired_ratios(timings, plain)
    size = f"{int((target >= 0).sum())} tokens in {tuple(target.shape)}, vocabulary {vocab}"
    table = Table(title=f"Training step: {size}, d {dim}", title_justify="left")
    table.add_column("loss", no_wrap=True)
    for header in ("ms a step", "spread, ms", "x plain XE"):
        table.add_column(header, justify="right")
    for name, timing in timings.items():
        table.add_row(name, f"{timing.median * 1e3:.1f}", timing.spread, f"{ratios[name]:.3f}")
    console.print(table)
    return {
        name: {"seconds": timing.seconds, "times_plain_xe": ratios[name]}
        for name, timing in timings.items()
    }


def measure(
    contenders: dict[str, Callable[[], object]],
    repeats: int,
    what: str,
    console: Console,
    clock: Callable[[Callable[[], object]], float] = wall_clock,
) -> dict[str, Timing]:
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for name, duration in track(
        take_turns(contenders, repeats, clock),
        description=what,
        total=repeats * len(contenders),
        console=console,
        transient=True,
    ):
        seconds[name].append(duration)
    return {name: Timing(values) for name, values in seconds.items()}


def paired_ratios(timings: dict[str, Timing], baseline: str) -> dict[str, float]:
    """Median over rounds of the ratio within a round: a slow moment of the machine cancels."""
    base = np.array(timings[baseline].seconds)
    return {
        name: float(np.median(np.array(timing.seconds) / base)) for name, timing in timings.items()
    }


def text_lengths(rng: np.random.Generator, tokens: int) -> list[int]:
    """Sorted sentence lengths in subwords, like news text: mean about 27, few above 100."""
    lengths = np.empty(0, dtype=np.int64)
    while lengths.sum() < tokens:
        drawn = rng.lognormal(mean=np.log(22.5), sigma=0.6, size=tokens // 25 + 1)
        lengths = np.concatenate([lengths, drawn.round().astype(np.int64).clip(1, 200)])
    enough = int(np.searchsorted(lengths.cumsum(), tokens)) + 1
    return sorted(lengths[:enough].tolist())


def sentences_of_like_length(rng: np.random.Generator, places: int, vocab: int) -> Tensor:
    """Targets from the middle of the lengths, padded with -100, in about so many places."""
    lengths = text_lengths(rng, places * 64)
    middle = int(np.searchsorted(lengths, np.median(lengths)))
    lengths = lengths[middle:][: places // lengths[middle]]
    target = torch.full((len(lengths), max(lengths)), -100)
    for row, length in zip(target, lengths, strict=True):
        row[:length] = torch.from_numpy(zipf_words(rng, length, vocab))
    return target


def costs_like_a_nat(rng: np.random.Generator, n: int) -> np.ndarray:
    """Negative logits as a half-trained model gives: vague about neighbours, words that repeat."""
    distance = np.abs(np.arange(n)[:, None] - np.arange(n)[None, :])
    scores = 2 * rng.normal(size=(n, n)) + 7 * rng.random((n, n)) * np.exp(-distance / 1.5)
    words = zipf_words(rng, n, 8_000)
    _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
    costs: np.ndarray = -scores[:, first[inverse]].astype(np.float32)
    return costs


def zipf_words(rng: np.random.Generator, n: int, vocab: int) -> np.ndarray:
    frequency = 1 / np.arange(1, vocab + 1)
    return rng.choice(vocab, size=n, p=frequency / frequency.sum())


def padded_batches(problems: Problems) -> list[tuple[Tensor, Tensor]]:
    """Sentences of like length together, as trainers batch them: costs and masks."""
    batches = []
    start = 0
    for end in range(1, len(problems) + 1):
        full = end == len(problems) or (end + 1 - start) * len(problems[end]) > PADDED
        if full:
            longest = len(problems[end - 1])
            cost = torch.zeros(end - start, longest, longest)
            mask = torch.zeros(end - start, longest, dtype=torch.bool)
            for row, problem in enumerate(problems[start:end]):
                n = len(problem)
                cost[row, :n, :n] = torch.from_numpy(problem)
                mask[row, :n] = True
            batches.append((cost, mask))
            start = end
    return batches


def ours_unpadded(batches: list[tuple[Tensor, Tensor]]) -> list[np.ndarray]:
    return [
        column[: int(mask.sum())].numpy()
        for costs, masks in batches
        for column, mask in zip(linear_assignment(costs, masks), masks, strict=True)
    ]


def total_cost(problems: Problems, orders: list[np.ndarray]) -> float:
    return sum(
        float(cost[np.arange(len(cost)), order].astype(np.float64).sum())
        for cost, order in zip(problems, orders, strict=True)
    )


class SmallTransformer(nn.Module):
    """Just enough of a non-autoregressive translator to time a training step."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(256, dim)
        self.body = nn.Transformer(
            dim, nhead=4, num_encoder_layers=3, num_decoder_layers=3, dim_feedforward=4 * dim,
            dropout=0.0, batch_first=True,
        )  # fmt: skip

    def forward(self, source: Tensor, length: int) -> Tensor:
        places = self.position.weight
        encoded = self.embedding(source) + places[: source.shape[1]]
        queries = places[:length].expand(len(source), -1, -1)
        hidden: Tensor = self.body(encoded, queries)  # (batch, length, dim)
        return hidden @ self.embedding.weight.T
