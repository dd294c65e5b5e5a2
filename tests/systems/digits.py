"""Systems must learn: to reverse the digits of a string, or to copy them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from oaxe.model.transformer import Size
from oaxe.support.config import build as build_options
from oaxe.systems import Progress, System, build, find
from oaxe.text.symbols import EOS
from oaxe.training.start import take_over

SIZE = Size(dim=64, ffn=256, heads=4, encoder_layers=1, decoder_layers=1)
ARCHITECTURE = {"vocab_size": 17, **SIZE, "max_length": 8, "dropout": 0.0}
RATE = 2e-3


def digit_strings(n: int, *, copied: bool = False) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Source with EOS, target, and the target as lists; ids 7..16 are the digits."""
    lengths = torch.randint(3, 6, (n,)).tolist()
    strings = [torch.randint(7, 17, (length,)) for length in lengths]
    source = pad_sequence([torch.cat([s, torch.tensor([EOS])]) for s in strings], batch_first=True)
    targets = strings if copied else [s.flip(0) for s in strings]
    return source, pad_sequence(targets, batch_first=True), [t.tolist() for t in targets]


copies = partial(digit_strings, copied=True)


def both_ways(n: int) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Two references of each source, with EOS between them: reversed, and as it is."""
    source, _, reversed_ones = digit_strings(n)
    both = [torch.tensor([*digits, EOS, *digits[::-1]]) for digits in reversed_ones]
    return source, pad_sequence(both, batch_first=True), reversed_ones


def learn(
    name: str,
    *,
    steps: int,
    layers: int = 1,
    start: System | None = None,
    teacher: System | None = None,
    strings: Callable[[int], tuple[Tensor, Tensor, list[list[int]]]] = digit_strings,
    **options: Any,
) -> System:
    """A system trained on the mean loss of a word, with warm-up and decay."""
    architecture = ARCHITECTURE | {"encoder_layers": layers, "decoder_layers": layers}
    model = build(name, architecture, build_options(find(name).Options, options))
    if start is not None:
        take_over(model, start)
    if teacher is not None:
        model.learn_from(teacher)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 50, 2 * (steps - step) / steps)
        source, target, _ = strings(64)
        example = model.example(source, target)
        epoch, end = torch.tensor([step / steps, 1.0], dtype=torch.float64)
        loss, _ = model(example, Progress(epoch, end, model.phase(step / steps, 1.0)))
        optimizer.zero_grad()
        (loss / example.n_words).backward()
        optimizer.step()
    return model.eval()


def exact_matches(model: System, decoding: Any, *, copied: bool = False) -> float:
    """The share of new strings that are translated without a mistake."""
    source, _, expected = digit_strings(200, copied=copied)
    found = [hypotheses[0].tokens for hypotheses in model.translate(source, decoding)]
    return sum(a == b for a, b in zip(found, expected, strict=True)) / len(expected)


def check_fine_tuning(model: System, decoding: Any) -> None:
    """Expected n-grams go on from what likelihood has learned, and get better at their own."""
    layers, end = len(model.transformer.decoder), Progress(*torch.ones(2, dtype=torch.float64))
    example = model.example(*digit_strings(100)[:2])
    losses = []
    for steps in (0, 40):
        tuned = learn(model.name, steps=steps, layers=layers, start=model, objective="ngrams")
        losses.append(tuned(example, end)[0].item())
    assert 0 < losses[1] < 0.9 * losses[0]
    assert exact_matches(tuned, decoding) > 0.9
