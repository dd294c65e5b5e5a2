"""``oaxe bench decode``: all words at once against word by word, with random weights.

The time does not depend on what is said, but on how much: every sentence and every translation has
the same number of tokens. 12-1, twelve layers that read and one that writes, has the dimensions of
base whatever the size of the others. `oaxe evaluate --speed` measures trained models on real text.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from oaxe.model.transformer import SIZES, Transformer
from oaxe.search.beam import beam_search
from oaxe.search.one_pass import translate_batch
from oaxe.search.replay import Replays
from oaxe.support.environment import environment, machine
from oaxe.support.errors import UserError
from oaxe.support.timing import Timing, take_turns
from oaxe.text.symbols import EOS, LENGTH

BASELINE = "word by word, beam 5"
MORE = 10  # tokens that beam search allows beyond its ratio


def run(
    *,
    size: str,
    vocab: int,
    length: int,
    batch: int,
    repeats: int,
    device: str,
    bf16: bool,
    seed: int,
    json_path: Path | None,
    console: Console,
) -> None:
    if size not in SIZES:
        raise UserError(f"--size must be one of {', '.join(SIZES)}, got {size}")
    torch.manual_seed(seed)
    settings = {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "precision": "bf16" if bf16 else "fp32",
        "size": size,
        "vocab": vocab,
        "length": length,
        "seed": seed,
    }
    console.print(", ".join(f"{k} {v}" for k, v in {**machine(), **settings}.items()))
    result: dict[str, Any] = {"environment": environment(), **settings}
    for sentences in dict.fromkeys((1, batch)):
        source = torch.randint(LENGTH + 1, vocab, (sentences, length), device=device)
        source[:, -1] = EOS
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
            contenders = decoders(size, vocab, source)
            timings: dict[str, list[float]] = {name: [] for name in contenders}
            for name, seconds in take_turns(contenders, repeats):
                timings[name].append(seconds)
        result[f"{sentences} at once"] = timings
        show({name: Timing(seconds) for name, seconds in timings.items()}, sentences, console)
        if json_path is not None:
            json_path.write_text(json.dumps(result, indent=2) + "\n")


def decoders(size: str, vocab: int, source: Tensor) -> dict[str, Callable[[], object]]:
    """Each ends with lists on the host: nothing can still be under way when the clock is read."""
    length = source.shape[1]

    def model(size: str, causal: bool) -> Transformer:
        return (
            Transformer(vocab_size=vocab, **SIZES[size], max_length=2 * length, causal=causal)
            .to(source.device)
            .eval()
        )

    one_pass, teacher, shallow = model(size, False), model(size, True), model("12-1", True)
    ratio = (length - MORE) / length
    search = partial(beam_search, source=source, max_ratio=ratio)
    around = torch.arange(-2, 3, device=source.device) + length
    lengths = around.expand(len(source), -1)
    at_once = partial(translate_batch, one_pass, source)
    replayed: dict[str, Callable[[], object]] = {}
    if source.is_cuda and len(source) == 1:  # as a Translator does
        graphs = partial(at_once, replays=Replays(one_pass))
        replayed = {
            "all at once, 5 lengths, CUDA graphs": partial(graphs, lengths=lengths),
            "all at once, 1 length, CUDA graphs": partial(graphs, lengths=lengths[:, 2:3]),
        }
    return {
        BASELINE: partial(search, teacher, beam=5),
        "word by word, greedy": partial(search, teacher, beam=1),
        "12-1 (base), beam 5": partial(search, shallow, beam=5),
        "12-1 (base), greedy": partial(search, shallow, beam=1),
        "all at once, 5 lengths": partial(at_once, lengths=lengths),
        "all at once, 1 length": partial(at_once, lengths=lengths[:, 2:3]),
        "mask-predict, 4 passes, 5 lengths": partial(at_once, lengths=lengths, refine_steps=4),
        **replayed,
    }


def show(timings: dict[str, Timing], sentences: int, console: Console) -> None:
    table = Table(title=f"{sentences} at once", title_justify="left")
    table.add_column("decoding", no_wrap=True)
    for header in ("ms", "spread, ms", "sentences/s", f"x {BASELINE}"):
        table.add_column(header, justify="right")
    for name, timing in timings.items():
        table.add_row(
            name,
            f"{timing.median * 1e3:.1f}",
            timing.spread,
            f"{sentences / timing.median:,.1f}",
            f"{timings[BASELINE].median / timing.median:.1f}",
        )
    console.print(table)
