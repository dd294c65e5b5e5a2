"""``oaxe bench step``: the training step of a Transformer on a GPU, plain XE against our losses."""

import json
from collections.abc import Callable
from copy import copy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from benchmarks.device import ceilings, device_clock, peak_gib, require_gpu
from benchmarks.losses import measure, paired_ratios, sentences_of_like_length
from oaxe.losses import linear_axe_loss, linear_oaxe_loss, linear_xe_loss
from oaxe.model import attention
from oaxe.model.transformer import SIZES, Transformer
from oaxe.support.environment import environment, machine
from oaxe.text.symbols import BLANK, LENGTH, MASK, PAD

PLAIN, OWN, OAXE = "XE, F.cross_entropy", "XE, linear_xe_loss", "OaXE, linear_oaxe_loss"
IGNORED = -100
Runs = dict[str, Callable[[], object]]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of hidden states, weight and target


def run(
    *,
    tokens: int,
    vocab: int,
    size: str,
    repeats: int,
    compiled: bool,
    seed: int,
    json_path: Path | None,
    console: Console,
) -> None:
    require_gpu()
    torch.manual_seed(seed)
    limits = ceilings()
    result: dict[str, Any] = {
        "environment": environment(), "ceilings": limits, "seed": seed, "size": size,
        "vocab": vocab, "compiled": compiled,
    }  # fmt: skip
    target = sentences_of_like_length(np.random.default_rng(seed), tokens, vocab).cuda()
    result["tokens"], result["padded"] = int((target != IGNORED).sum()), target.numel()
    console.print(", ".join(f"{k} {v}" for k, v in {**machine(), **limits}.items()))
    for name, bench in (("output layer", output_layer), ("step", whole_step)):
        runs, flop = bench(target, vocab, size, compiled)
        floor = flop / limits["flop_per_second"]
        result[name] = compare(name, runs, floor, target, repeats, console)
        if json_path is not None:
            json_path.write_text(json.dumps(result, indent=2) + "\n")


def compare(
    name: str,
    runs: Runs,
    floor: float,
    target: Tensor,
    repeats: int,
    console: Console,
) -> dict[str, Any]:
    """Time all in turns, and note the peak memory of each; who fails is left out and named."""
    memory: dict[str, float] = {}
    failed: dict[str, str] = {}
    for who, run in runs.items():
        try:
            run()  # compiles
            memory[who] = peak_gib(run)
        except Exception as error:
            failed[who] = f"{type(error).__name__}: {error}"[:300]
            console.print(f"{who}: {failed[who]}")
            torch.cuda.empty_cache()
    able = {who: run for who, run in runs.items() if who in memory}
    timings = measure(able, repeats, name, console, device_clock)
    ratios = paired_ratios(timings, PLAIN) if PLAIN in timings else {}
    own = paired_ratios(timings, OWN) if OWN in timings else {}
    table = Table(
        title=f"{name}: {tuple(target.shape)}, arithmetic floor {floor * 1e3:.1f} ms",
        title_justify="left",
    )
    table.add_column("loss", no_wrap=True)
    for header in ("ms", "spread, ms", "x plain XE", "x our XE", "x floor", "GiB", "x plain GiB"):
        table.add_column(header, justify="right")
    nan = float("nan")
    for who, timing in timings.items():
        table.add_row(
            who,
            f"{timing.median * 1e3:.1f}",
            timing.spread,
            f"{ratios.get(who, nan):.3f}",
            f"{own.get(who, nan):.3f}",
            f"{timing.median / floor:.2f}",
            f"{memory[who]:.2f}",
            f"{memory[who] / memory.get(PLAIN, nan):.3f}",
        )
    console.print(table)
    return {
        "floor_seconds": floor,
        "failed": failed,
        "losses": {
            who: {
                "seconds": timing.seconds,
                "times_plain_xe": ratios.get(who),
                "times_own_xe": own.get(who),
                "peak_gib": memory[who],
            }
            for who, timing in timings.items()
        },
    }


def output_layer(target: Tensor, vocab: int, size: str, compiled: bool) -> tuple[Runs, float]:
    """The output layer alone, forward and backward, from hidden states in bfloat16."""
    dim = SIZES[size]["dim"]
    hidden = torch.randn(*target.shape, dim, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(vocab, dim, device="cuda") / dim**0.5
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]

    def differentiate(loss: Loss) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(inputs[0], inputs[1], target)
        torch.autograd.grad(value, inputs)

    contenders = {**their_losses(compiled), **our_losses()}
    runs: Runs = {name: partial(differentiate, loss) for name, loss in contenders.items()}
    return runs, 3 * 2 * target.numel() * vocab * dim


def whole_step(target: Tensor, vocab: int, size: str, compiled: bool) -> tuple[Runs, float]:
    """Forward, loss, backward and Adam; all decoder inputs are masked; dropout 0.1.

    Our losses have our layers as well; those of others have PyTorch's. To tell the two apart, OaXE
    is also measured with PyTorch's layers. And both with layers that keep no activations.
    """
    model = Transformer(
        vocab_size=vocab, **SIZES[size], max_length=256, causal=False, dropout=0.1
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    real = target != IGNORED
    source = torch.where(real, target.clamp(min=LENGTH + 1), PAD)
    inputs = torch.where(real, MASK, PAD)
    kept = torch.compile(model) if compiled else model
    again = recomputed(model, compiled)

    def step(loss: Loss, own_layers: bool = False, forward: Callable[..., Any] = kept) -> None:
        attention.KERNELS = own_layers
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            hidden, _ = forward(source, inputs, real)
            value = loss(hidden, model.output_weight, target)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    theirs = {name: partial(step, loss) for name, loss in their_losses(compiled).items()}
    ours = {name: partial(step, loss, own_layers=True) for name, loss in our_losses().items()}
    runs: Runs = {
        **theirs,
        **ours,
        f"{OAXE}, PyTorch's layers": partial(step, linear_oaxe_loss),
        f"{OAXE}, recomputed": partial(step, linear_oaxe_loss, own_layers=True, forward=again),
        f"{PLAIN}, recomputed": partial(step, plain_xe, forward=again),
    }
    return runs, flop_of_step(model, target.numel(), vocab, target.shape[1])


def recomputed(model: Transformer, compiled: bool) -> Transformer:
    """The same weights, but layers keep no activations.

    Each is compiled by itself, as `train.compile` does: a compiled model may keep them after all.
    """
    other = copy(model)
    other.recompute = True
    if compiled:
        other._modules = dict(model._modules)
        for name, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
            each: list[Any] = [torch.compile(layer) for layer in layers]
            other._modules[name] = nn.ModuleList(each)
    return other


def flop_of_step(model: Transformer, tokens: int, vocab: int, length: int) -> float:
    """Of all products with weights and of attention, forward and twice that backward."""
    dim = model.tokens.embedding_dim
    layers = [*model.encoder.parameters(), *model.decoder.parameters()]
    weights = sum(parameter.numel() for parameter in layers if parameter.dim() == 2)
    attentions = len(model.encoder) + 2 * len(model.decoder)
    forward = 2 * tokens * (weights + vocab * dim + attentions * 2 * length * dim)
    return float(3 * forward)


def their_losses(compiled: bool) -> dict[str, Loss]:
    found: dict[str, Loss] = {PLAIN: plain_xe}
    if compiled:
        found["XE, the same compiled"] = torch.compile(plain_xe)
    if hasattr(F, "linear_cross_entropy"):
        found["XE, F.linear_cross_entropy"] = torch_linear_xe
        found["XE, F.linear_cross_entropy, chunked"] = partial(torch_linear_xe, chunked=True)
    if find_spec("liger_kernel") is not None:
        found["XE, Liger"] = liger_xe
    return found | {"OaXE, the paper's way (scipy)": papers_oaxe}


def our_losses() -> dict[str, Loss]:
    smoothed = partial(linear_oaxe_loss, truncation=0.15, label_smoothing=0.1)
    return {
        OWN: linear_xe_loss,
        OAXE: linear_oaxe_loss,
        "OaXE, truncated, smoothed": smoothed,
        "AXE, linear_axe_loss": lambda h, e, y: linear_axe_loss(
            h, e, y, blank=BLANK, logit_mask=y != IGNORED
        ),
    }


def plain_xe(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, 1), target.flatten())


def papers_oaxe(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """A loop over the sentences with scipy, on log-probabilities of all words."""
    log_probs = F.log_softmax(F.linear(hidden, weight), dim=-1)  # float32 under autocast
    words = target.clamp(min=0)
    with torch.no_grad():
        own = words.unsqueeze(1).expand(-1, target.shape[1], -1)
        costs = -log_probs.gather(2, own).float().cpu().numpy()
        order = words.cpu().numpy()
        for row, (cost, n) in enumerate(
            zip(costs, (target != IGNORED).sum(1).tolist(), strict=True)
        ):
            order[row, :n] = order[row, linear_sum_assignment(cost[:n, :n])[1]]
        reordered = torch.where(target == IGNORED, IGNORED, torch.from_numpy(order).cuda())
    return F.nll_loss(log_probs.flatten(0, 1), reordered.flatten())


def torch_linear_xe(
    hidden: Tensor, weight: Tensor, target: Tensor, chunked: bool = False
) -> Tensor:
    half = hidden.to(torch.bfloat16).flatten(0, 1), weight.to(torch.bfloat16)
    options = nn.LinearCrossEntropyOptions() if chunked else None
    loss: Tensor = F.linear_cross_entropy(*half, target.flatten(), options=options)
    return loss


def liger_xe(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    half = hidden.to(torch.bfloat16).flatten(0, 1), weight.to(torch.bfloat16)
    loss: Tensor = LigerFusedLinearCrossEntropyLoss()(half[1], half[0], target.flatten())
    return loss
