"""Batches without padding: every system computes what it computes with it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.support.config import build as build_options
from oaxe.systems import Example, Progress, System, build, built_in, find
from oaxe.text.plans import Room
from oaxe.text.symbols import EOS, PAD

SIZE = {"dim": 32, "ffn": 64, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
LENGTHS = [3, 7, 1, 5]
RANDOM = {"glat", "ctc_glat", "dslp", "imputer"}  # what they reveal in training
HALF = torch.tensor(0.5, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Sentences of other lengths; rows that are left over have none."""
    random = torch.Generator().manual_seed(1)
    source, target = torch.full((rows, 10), PAD), torch.full((rows, 9), PAD)
    for row, n in enumerate(LENGTHS):
        source[row, :n] = torch.randint(8, 40, (n,), generator=random)
        source[row, n] = EOS
        target[row, : n + 1] = torch.randint(8, 40, (n + 1,), generator=random)
    return source, target


def step(
    system: System, example: Example, room: Room | None = None
) -> tuple[Tensor, Any, list[Tensor | None]]:
    torch.manual_seed(7)
    with system.transformer.packed(room):
        loss, statistics = system(example, Progress(*HALF, system.phase(0.5, 1.0)))
    found = torch.autograd.grad(loss, [*system.parameters()], allow_unused=True)
    return loss, statistics, [*found]


def new(name: str, options: dict[str, Any] | None = None, **changes: Any) -> System:
    architecture = {"vocab_size": 40, **SIZE, "max_length": 20, "dropout": 0.0, **changes}
    torch.manual_seed(3)
    return build(name, architecture, build_options(find(name).Options, options or {})).double()


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("ctc", {"objective": "ngrams"}),
    ("ctc_glat", {"objective": "ngrams"}),
    ("ctc", {"objective": "coco"}),
    ("ctc", {"weak_decoder": 0.5, "consistency": 0.5}),
    ("cmlm", {"loss": {"name": "ngram_oaxe", "truncation": 0.02}}),
    ("ctc_glat", {"objective": {"name": "coco", "rest": "blanks"}}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_options_that_change_what_is_learned(name: str, options: dict[str, Any]) -> None:
    check_the_same(new(name, options, norm="pre"))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", ["start", "both"])
@pytest.mark.parametrize("name", built_in())
def test_the_same_loss_statistics_and_gradients(name: str, positions: str, norm: str) -> None:
    if positions == "both" and name in ("transformer", "language_model"):
        pytest.skip("a causal model does not know its end")
    system = new(name, norm=norm, positions=positions)
    if system.room(1, 1, 1) is None:
        pytest.skip("it needs padding")
    check_the_same(system)


def check_the_same(system: System) -> None:
    system.train(system.name not in RANDOM)
    torch.manual_seed(5)
    source, target = batch(len(LENGTHS))
    example = system.example(source, target)
    expected, statistics, gradients = step(system, example)

    wide_source, wide_target = batch(len(LENGTHS) + 2)
    wide = system.example(wide_source, wide_target)
    rows = slice(len(LENGTHS))
    for its, given in zip(wide, example, strict=True):  # masks are random
        its[rows] = given
    assert (wide.length[len(LENGTHS) :] < 0).all()
    assert not wide.mask[len(LENGTHS) :].any()
    n_source, n_target = int((source != PAD).sum()), int((target != PAD).sum())
    for spare in (0, 3):
        room = system.room(len(wide_source), n_source + spare, n_target + spare)
        found, also, packed = step(system, wide, room)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(also, statistics, check_dtype=False)
        for ours, theirs in zip(packed, gradients, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", built_in())
def test_too_little_room_is_noticed(name: str) -> None:
    system = new(name)
    if system.room(1, 1, 1) is None:
        pytest.skip("it needs padding")
    source, target = batch(len(LENGTHS))
    room = system.room(1, int((source != PAD).sum()) - 9, 4)
    assert step(system, system.example(source, target), room)[0].isnan()
