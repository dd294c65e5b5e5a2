"""CPU: the matching of a whole batch, and the training step of a small Transformer around it."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from benchmarks.harness import JsonPath, Repeats, Report, Seed, Tokens, relative_time, speed_up
from benchmarks.inputs import (
    Problems,
    costs_like_a_nat,
    matched_cost,
    padded,
    sentences_of_like_length,
    text_lengths,
)
from benchmarks.peers import SCIPY, installed_peers, total_cost
from oaxe.losses import assignment_backend, linear_assignment, oaxe_loss, xe_loss

OURS, PLAIN = "oaxe.linear_assignment", "F.cross_entropy"
PADDED = 8_192  # positions in a padded batch of the matching
STEP_PADDED = 2_048  # positions in the batch of the training step


def losses(
    tokens: Tokens = 131_072,
    repeats: Repeats = 5,
    steps: Annotated[
        int, typer.Option(min=0, help="Timed training steps of each loss; 0 leaves them out.")
    ] = 15,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of torch; default: torch's own choice.")
    ] = None,
    seed: Seed = 0,
    json: JsonPath = None,
) -> None:
    """CPU: matching and training step, ours against a scipy loop and installed peers.

    Peers: pip install lapx lapjv torch-linear-assignment.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    report = Report(json, seed=seed)
    matching(report, tokens, repeats, seed)
    if steps:
        training_step(report, steps, seed)


def matching(report: Report, tokens: int, repeats: int, seed: int) -> None:
    """Solving alone: the batches of every solver are built before."""
    rng = np.random.default_rng(seed)
    problems = [costs_like_a_nat(rng, n) for n in text_lengths(rng, tokens)]
    batches = [padded(batch) for batch in batches_of_like_length(problems)]
    solvers = {
        name: partial(peer.solve, peer.arrange(problems))
        for name, peer in installed_peers().items()
    }
    ours = partial(lambda: [linear_assignment(cost, mask) for cost, mask in batches])
    timings = report.measure({OURS: ours, **solvers}, repeats, "matching")
    totals = {name: total_cost(problems, solve()) for name, solve in solvers.items()}
    totals[OURS] = sum(
        matched_cost(*batch, order) for batch, order in zip(batches, ours(), strict=True)
    )
    each = {name: timing.median / len(problems) * 1e6 for name, timing in timings.items()}
    report.add(
        "matching",
        timings,
        {"µs each": each, "x scipy": speed_up(timings, SCIPY), "total cost": totals},
        sentences=len(problems),
        tokens=sum(map(len, problems)),
        longest=len(problems[-1]),
        backend=assignment_backend(),
    )


def batches_of_like_length(problems: Problems) -> list[Problems]:
    """Consecutive problems, as many as fit into the padded size of a batch."""
    batches: list[Problems] = [[]]
    for problem in problems:  # sorted by length
        if batches[-1] and (len(batches[-1]) + 1) * len(problem) > PADDED:
            batches.append([])
        batches[-1].append(problem)
    return batches


def training_step(report: Report, steps: int, seed: int) -> None:
    """Forward, loss, backward and update of a small Transformer: plain XE against our losses."""
    torch.manual_seed(seed)
    vocab, dim = 8_000, 256
    target = sentences_of_like_length(np.random.default_rng(seed), STEP_PADDED, vocab)
    source = target.clamp(min=0).roll(1, dims=1)
    model = SmallTransformer(vocab, dim)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
        optimizer.zero_grad()
        loss_of(model(source, target.shape[1]), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    contenders: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        PLAIN: lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()),
        "oaxe.xe_loss": xe_loss,
        "oaxe.oaxe_loss": oaxe_loss,
        "oaxe.oaxe_loss, truncated": partial(oaxe_loss, truncation=0.15),
    }
    runs = {name: partial(step, loss) for name, loss in contenders.items()}
    timings = report.measure(runs, steps, "training step")
    report.add(
        "training step",
        timings,
        {"x plain XE": relative_time(timings, PLAIN)},
        tokens=int((target >= 0).sum()),
        positions=target.numel(),
        vocabulary=vocab,
        dimension=dim,
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
        positions = self.position.weight
        encoded = self.embedding(source) + positions[: source.shape[1]]
        queries = positions[:length].expand(len(source), -1, -1)
        hidden = self.body(encoded, queries)  # (batch, length, dim)
        return hidden @ self.embedding.weight.T
