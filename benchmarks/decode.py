"""CPU or GPU: one-pass decoding against autoregressive decoding, with random weights.

The time depends on the number of tokens, not on which they are: every sentence and every
translation has the same number. 12-1, twelve encoder layers and one decoder layer, always has the
dimensions of base. `oaxe evaluate --speed` measures trained models on real text.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.harness import JsonPath, Repeats, Report, Seed, Size, Vocab, speed_up
from oaxe.commands.options import Bf16, Device
from oaxe.model.transformer import SIZES
from oaxe.search.beam import beam_search
from oaxe.search.one_pass import translate_lengths
from oaxe.search.replay import Replays
from oaxe.support.devices import usable_device
from oaxe.support.errors import UserError
from oaxe.systems import build, cmlm, transformer
from oaxe.text.symbols import EOS, LENGTH

BASELINE = "autoregressive, beam 5"
GRAPHS = ", CUDA graphs"
MORE = 10  # tokens that beam search allows beyond its ratio


def decode(
    size: Size = "base",
    vocab: Vocab = 32_000,
    length: Annotated[int, typer.Option(min=11, help="Tokens of source and target.")] = 27,
    batch: Annotated[int, typer.Option(min=1, help="Sentences at once, besides one alone.")] = 64,
    repeats: Repeats = 10,
    device: Device = None,
    bf16: Bf16 = False,
    seed: Seed = 0,
    json: JsonPath = None,
) -> None:
    """CPU or GPU: latency and throughput of one-pass and of autoregressive decoding."""
    if size not in SIZES:
        raise UserError(f"--size must be one of {', '.join(SIZES)}, got {size}")
    device = usable_device(device)
    report = Report(
        json,
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        precision="bf16" if bf16 else "fp32",
        size=size,
        vocab=vocab,
        length=length,
        seed=seed,
    )
    torch.manual_seed(seed)
    for sentences in dict.fromkeys((1, batch)):
        source = torch.randint(LENGTH + 1, vocab, (sentences, length), device=device)
        source[:, -1] = EOS
        title = f"{sentences} at once"
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
            timings = report.measure(decoders(size, vocab, source), repeats, title)
        rate = {name: sentences / timing.median for name, timing in timings.items()}
        columns: dict[str, Mapping[str, float]] = {"sentences/s": rate}
        for name in (BASELINE, BASELINE + GRAPHS):
            if name in timings:
                columns[f"x {name}"] = speed_up(timings, name)
        report.add(title, timings, columns)


def decoders(size: str, vocab: int, source: Tensor) -> dict[str, Callable[[], object]]:
    """Each ends with lists on the host: the device has finished when the clock is read."""
    length = source.shape[1]

    def model(name: str, size: str, options: Any) -> Any:
        architecture = {"vocab_size": vocab, **SIZES[size], "max_length": 2 * length}
        return build(name, architecture, options).to(source.device).eval()

    one_pass = model("cmlm", size, cmlm.Options())
    teacher, shallow = (
        model("transformer", of, transformer.Options()).transformer for of in (size, "12-1")
    )
    search = partial(beam_search, source=source, max_ratio=(length - MORE) / length)
    around = torch.arange(-2, 3, device=source.device) + length
    lengths = around.expand(len(source), -1)
    decode = partial(translate_lengths, one_pass, source)
    plain: dict[str, Callable[..., object]] = {
        BASELINE: partial(search, teacher, beam=5),
        "autoregressive, greedy": partial(search, teacher, beam=1),
        "12-1 (base), beam 5": partial(search, shallow, beam=5),
        "12-1 (base), greedy": partial(search, shallow, beam=1),
        "one pass, 5 lengths": partial(decode, lengths=lengths),
        "one pass, 1 length": partial(decode, lengths=lengths[:, 2:3]),
        "mask-predict, 4 passes, 5 lengths": partial(decode, lengths=lengths, refine_steps=4),
    }
    if not source.is_cuda:
        return plain
    calls = {"auto": Replays(teacher), "12-1": Replays(shallow)}
    if len(source) == 1:  # as a Translator does
        calls["one "] = Replays(one_pass)
    return plain | {
        name + GRAPHS: partial(run, call=calls[name[:4]])
        for name, run in plain.items()
        if name[:4] in calls
    }
