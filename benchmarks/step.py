"""GPU: the training step of a Transformer in bfloat16, plain cross entropy against our losses.

`F.linear_cross_entropy` and Liger's fused loss are compared where they are installed.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from benchmarks import gpu
from benchmarks.harness import (
    Contenders,
    JsonPath,
    Repeats,
    Report,
    Seed,
    Size,
    Tokens,
    Vocab,
    relative_time,
)
from benchmarks.inputs import sentences_of_like_length
from oaxe.losses import linear_axe_loss, linear_oaxe_loss, linear_xe_loss
from oaxe.model import attention
from oaxe.model.masking import IGNORED
from oaxe.model.transformer import SIZES, Transformer
from oaxe.text.symbols import BLANK, LENGTH, MASK, PAD

PLAIN, OWN, OAXE = "XE, F.cross_entropy", "XE, linear_xe_loss", "OaXE, linear_oaxe_loss"
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of hidden states, weight and target


def step(
    tokens: Tokens = 131_072,
    vocab: Vocab = 32_000,
    size: Size = "base",
    repeats: Repeats = 10,
    compiled: Annotated[
        bool, typer.Option("--compile/--eager", help="torch.compile on the model.")
    ] = True,
    seed: Seed = 0,
    json: JsonPath = None,
) -> None:
    """GPU: a training step in bfloat16, plain cross entropy against our losses and peers.

    Peers: torch with F.linear_cross_entropy, pip install liger-kernel.
    """
    gpu.require_gpu()
    torch.manual_seed(seed)
    limits = gpu.ceilings()
    report = Report(json, seed=seed, size=size, vocab=vocab, compiled=compiled, **limits)
    target = sentences_of_like_length(np.random.default_rng(seed), tokens, vocab).to(gpu.DEVICE)
    for title, contenders in (("output layer", output_layer), ("step", whole_step)):
        runs, flop = contenders(target, vocab, size, compiled)
        compare(report, title, runs, flop / limits["flop_per_second"], target, repeats)


def compare(
    report: Report, title: str, runs: Contenders, floor: float, target: Tensor, repeats: int
) -> None:
    """Time all in turns, with the peak memory of each; a contender that fails is left out."""
    memory: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, run in runs.items():
        try:
            run()  # compiles
            memory[name] = gpu.peak_gib(run)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:300]
            torch.cuda.empty_cache()
    able = {name: run for name, run in runs.items() if name in memory}
    timings = report.measure(able, repeats, title, gpu.device_clock)
    plain = memory.get(PLAIN, float("nan"))
    report.add(
        title,
        timings,
        {
            "x plain XE": relative_time(timings, PLAIN),
            "x our XE": relative_time(timings, OWN),
            "x floor": {name: timing.median / floor for name, timing in timings.items()},
            "GiB": memory,
            "x plain GiB": {name: peak / plain for name, peak in memory.items()},
        },
        tokens=int((target != IGNORED).sum()),
        positions=target.numel(),
        floor_ms=floor * 1e3,
        failed=failed,
    )


def output_layer(target: Tensor, vocab: int, size: str, compiled: bool) -> tuple[Contenders, float]:
    """The output layer alone, forward and backward, from hidden states in bfloat16."""
    dim = SIZES[size]["dim"]
    hidden = torch.randn(*target.shape, dim, device=gpu.DEVICE, dtype=torch.bfloat16)
    weight = torch.randn(vocab, dim, device=gpu.DEVICE) / dim**0.5
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]

    def differentiate(loss: Loss) -> None:
        with torch.autocast(gpu.DEVICE, torch.bfloat16):
            value = loss(inputs[0], inputs[1], target)
        torch.autograd.grad(value, inputs)

    contenders = {**their_losses(compiled), **our_losses()}
    runs = {name: partial(differentiate, loss) for name, loss in contenders.items()}
    return runs, 3 * 2 * target.numel() * vocab * dim


def whole_step(target: Tensor, vocab: int, size: str, compiled: bool) -> tuple[Contenders, float]:
    """Forward, loss, backward and Adam; all decoder inputs are masked; dropout 0.1.

    Our losses run with our layers, the others with PyTorch's. To tell the two apart, OaXE is also
    measured with PyTorch's layers. OaXE and plain XE are measured without stored activations, too.
    """
    model = Transformer(
        vocab_size=vocab, **SIZES[size], max_length=256, causal=False, dropout=0.1
    ).to(gpu.DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    real = target != IGNORED
    source = torch.where(real, target.clamp(min=LENGTH + 1), PAD)
    inputs = torch.where(real, MASK, PAD)
    kept = partial(torch.compile(hidden_states) if compiled else hidden_states, model)
    again = partial(hidden_states, recomputed(model, compiled))

    def step(loss: Loss, own_layers: bool = False, forward: Callable[..., Tensor] = kept) -> None:
        attention.KERNELS = own_layers
        optimizer.zero_grad()
        with torch.autocast(gpu.DEVICE, torch.bfloat16):
            value = loss(forward(source, inputs, real), model.output_weight, target)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    runs = {
        **{name: partial(step, loss) for name, loss in their_losses(compiled).items()},
        **{name: partial(step, loss, own_layers=True) for name, loss in our_losses().items()},
        f"{OAXE}, PyTorch's layers": partial(step, linear_oaxe_loss),
        f"{OAXE}, recomputed": partial(step, linear_oaxe_loss, own_layers=True, forward=again),
        f"{PLAIN}, recomputed": partial(step, plain_xe, forward=again),
    }
    return runs, flop_of_step(model, target.numel(), vocab, target.shape[1])


def hidden_states(model: Transformer, source: Tensor, inputs: Tensor, mask: Tensor) -> Tensor:
    return model.decode(inputs, mask, model.encode(source))


def recomputed(model: Transformer, compiled: bool) -> Transformer:
    """The same weights in layers that store no activations.

    Each layer is compiled by itself, as `train.compile` does: a compiled model may store them.
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
    """Operations of products with weights and of attention: forward, and twice that backward."""
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
    if find_spec("liger_kernel") is not None:
        found["XE, Liger"] = liger_xe
    return found | {"OaXE, as in the paper (scipy)": papers_oaxe}


def our_losses() -> dict[str, Loss]:
    return {
        OWN: linear_xe_loss,
        OAXE: linear_oaxe_loss,
        "OaXE, truncated, smoothed": partial(
            linear_oaxe_loss, truncation=0.15, label_smoothing=0.1
        ),
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
        order, lengths = words.cpu().numpy(), (target != IGNORED).sum(1).tolist()
        for row, cost, n in zip(order, costs, lengths, strict=True):
            row[:n] = row[linear_sum_assignment(cost[:n, :n])[1]]
        reordered = torch.where(target == IGNORED, IGNORED, torch.from_numpy(order).to(gpu.DEVICE))
    return F.nll_loss(log_probs.flatten(0, 1), reordered.flatten())


def torch_linear_xe(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()  # in chunks; without it all logits are stored
    return F.linear_cross_entropy(  # type: ignore[attr-defined,unused-ignore]
        *halves(hidden, weight), target.flatten(), options=options
    )


def liger_xe(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    hidden, weight = halves(hidden, weight)
    return LigerFusedLinearCrossEntropyLoss()(weight, hidden, target.flatten())


def halves(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """In bfloat16, which autocast does not do for these two."""
    return hidden.to(torch.bfloat16).flatten(0, 1), weight.to(torch.bfloat16)
