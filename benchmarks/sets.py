"""Sets at the sizes of real training: losses of the examples, and the loops that they replace."""

from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from runpy import run_path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import oaxe
from benchmarks import gpu
from benchmarks.harness import Device, JsonPath, Repeats, Report, Seed, speed_up
from benchmarks.peers import SCIPY
from oaxe.support.timing import wall_clock

EXAMPLES = Path(__file__).parents[1] / "examples"
OURS, IN_ORDER, ALL_ORDERS = "oaxe", "in the order given", "all orders"
RECORDINGS, VOICES, FRAMES = 32, (2, 3, 4, 6, 8, 10, 20), 500
MOST_ORDERED = 8  # voices: more have too many orders
TEXTS, SLOTS, TAGS = (64, 512), (10, 30, 100), 1_000
PICTURES, PHRASES, WORDS, VOCAB = 64, (10, 30), 4, 8_000

Losses = dict[str, Callable[[Tensor], Tensor]]  # by contender


def sets(
    device: Device = "cpu", repeats: Repeats = 15, seed: Seed = 0, json: JsonPath = None
) -> None:
    """Losses of voices, tags and phrases in any order: ours against loops.

    Each takes the logits of a model to the gradient of the loss with respect to them. What takes
    the order as it is given shows what any order costs.
    """
    if device == "cuda":
        gpu.require_gpu()
    report = Report(json, seed=seed, device=device, threads=torch.get_num_threads())
    torch.manual_seed(seed)
    with torch.device(device):
        for voices in VOICES:
            title = f"{RECORDINGS} recordings, {voices} voices"
            compare(report, title, *of_voices(RECORDINGS, voices), repeats)
        for texts in TEXTS:
            for slots in SLOTS:
                compare(report, f"{texts} texts, {slots} tags", *of_tags(texts, slots), repeats)
        for phrases in PHRASES:
            title = f"{PICTURES} pictures, {phrases} phrases"
            compare(report, title, *of_phrases(PICTURES, phrases), repeats)


def of_voices(batch: int, voices: int) -> tuple[Tensor, Losses]:
    """Who speaks when (diarisation): a model that hears it, in an order of its own."""
    spoken = torch.rand(batch, FRAMES, voices).lt(0.3).float()
    logits = 2 * shuffled(spoken, dim=2) - 1 + torch.randn_like(spoken)

    def all_pairs(logits: Tensor) -> Tensor:
        """Binary cross entropy, ``(batch, outputs, voices)``."""
        hits = logits.transpose(1, 2) @ spoken / FRAMES
        return F.softplus(logits).mean(1).unsqueeze(2) - hits

    invariant = run_path(str(EXAMPLES / "speech_separation.py"))["permutation_invariant"]
    losses: Losses = {
        IN_ORDER: lambda logits: F.binary_cross_entropy_with_logits(logits, spoken),
        OURS: lambda logits: invariant(all_pairs(logits)),
        SCIPY: lambda logits: mean_of_best(all_pairs(logits)),
    }
    if voices <= MOST_ORDERED:
        orders = torch.tensor(list(permutations(range(voices))))
        chosen = F.one_hot(orders, voices).float().flatten(1).T  # (voices * voices, orders)
        losses[ALL_ORDERS] = lambda logits: (
            (all_pairs(logits).flatten(1) @ chosen).amin(1).mean() / voices
        )
    return logits, losses


def of_tags(batch: int, slots: int) -> tuple[Tensor, Losses]:
    """Half of the slots have a tag, the others 0, which is none."""
    tags = torch.rand(batch, TAGS).argsort(1)[:, :slots] + 1
    tags = tags.where(torch.rand(batch, slots) < 0.5, 0)
    logits = 4 * F.one_hot(shuffled(tags, dim=1), TAGS + 1) + torch.randn(batch, slots, TAGS + 1)

    def costs(logits: Tensor) -> Tensor:
        return -logits.log_softmax(2).gather(2, tags.unsqueeze(1).expand(-1, slots, -1))

    return logits, {
        IN_ORDER: lambda logits: F.cross_entropy(logits.flatten(0, 1), tags.flatten()),
        OURS: lambda logits: oaxe.oaxe_loss(logits, tags),
        SCIPY: lambda logits: mean_of_best(costs(logits)),
    }


def of_phrases(batch: int, slots: int) -> tuple[Tensor, Losses]:
    """Phrases of up to WORDS words."""
    words = torch.randint(VOCAB, (batch, slots, WORDS))
    logits = torch.randn(batch, slots, WORDS, VOCAB)
    logits.scatter_(3, shuffled(words, dim=1).unsqueeze(3), 6.0)
    words = words.where(torch.arange(WORDS) < torch.randint(1, WORDS + 1, (batch, slots, 1)), -100)
    example = run_path(str(EXAMPLES / "phrases.py"))

    def in_a_loop(logits: Tensor) -> Tensor:
        return mean_of_best(example["costs"](logits, words)) * (batch * slots) / words.ge(0).sum()

    return logits, {
        IN_ORDER: lambda logits: F.cross_entropy(logits.flatten(0, 2), words.flatten()),
        OURS: lambda logits: example["phrase_loss"](logits, words),
        SCIPY: in_a_loop,
    }


def shuffled(values: Tensor, dim: int) -> Tensor:
    """Every row of the batch in an order of its own."""
    shape = [size if d in (0, dim) else 1 for d, size in enumerate(values.shape)]
    return values.gather(dim, torch.rand(shape).argsort(dim).expand_as(values))


def mean_of_best(costs: Tensor) -> Tensor:
    """Of ``(batch, n, n)``, matched by scipy in a loop."""
    columns = [linear_sum_assignment(one)[1] for one in costs.detach().cpu().numpy()]
    match = torch.from_numpy(np.stack(columns)).to(costs.device)
    return costs.gather(2, match.unsqueeze(2)).mean()


def compare(report: Report, title: str, logits: Tensor, losses: Losses, repeats: int) -> None:
    logits.requires_grad_()
    contenders = {name: partial(differentiate, of, logits) for name, of in losses.items()}
    clock = gpu.device_clock if logits.is_cuda else wall_clock
    timings = report.measure(contenders, repeats, title, clock)
    found = {name: float(of(logits).detach()) for name, of in losses.items()}
    report.add(title, timings, {"x scipy": speed_up(timings, SCIPY), "loss": found})


def differentiate(loss_of: Callable[[Tensor], Tensor], logits: Tensor) -> None:
    torch.autograd.grad(loss_of(logits), logits)
