"""The commands of the benchmarks."""

from typing import Annotated

import typer

from oaxe.commands.options import Bf16, Configuration, Device, JsonPath, Overrides
from oaxe.support.files import check_output

bench = typer.Typer(
    help="Measure, all contenders on the same inputs in one run.", no_args_is_help=True
)


@bench.command()
def losses(
    tokens: Annotated[int, typer.Option(min=1, help="Target tokens in the batch.")] = 131_072,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of each contender.")] = 5,
    steps: Annotated[
        int, typer.Option(min=0, help="Timed training steps of each loss; 0 leaves them out.")
    ] = 15,
    threads: Annotated[
        int | None, typer.Option(min=1, help="torch threads; default: torch's own choice.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    json: JsonPath = None,
) -> None:
    """Matching and training step on the CPU: ours, the scipy loop, and peers that are installed.

    Peers: pip install lapx lapjv torch-linear-assignment.
    """
    from oaxe.support.console import new_console

    check_output(json)

    from benchmarks.losses import run

    run(
        tokens=tokens,
        repeats=repeats,
        steps=steps,
        threads=threads,
        seed=seed,
        json_path=json,
        console=new_console(),
    )


@bench.command()
def assignment(
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of each solver.")] = 15,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    json: JsonPath = None,
) -> None:
    """Matching on a GPU: ours, the scipy loop, and peers that are installed."""
    from oaxe.support.console import new_console

    check_output(json)

    from benchmarks.gpu_assignment import run

    run(repeats=repeats, seed=seed, json_path=json, console=new_console())


@bench.command()
def step(
    tokens: Annotated[int, typer.Option(min=1, help="Target tokens in the batch.")] = 131_072,
    vocab: Annotated[int, typer.Option(min=100, help="Vocabulary.")] = 32_000,
    size: Annotated[str, typer.Option(help="Of the Transformer, such as base or big.")] = "base",
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps of each loss.")] = 10,
    compiled: Annotated[
        bool, typer.Option("--compile/--eager", help="torch.compile on the model.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    json: JsonPath = None,
) -> None:
    """A training step on a GPU in bfloat16: plain cross entropy against our losses."""
    from oaxe.support.console import new_console

    check_output(json)

    from benchmarks.gpu_step import run

    run(
        tokens=tokens,
        vocab=vocab,
        size=size,
        repeats=repeats,
        compiled=compiled,
        seed=seed,
        json_path=json,
        console=new_console(),
    )


@bench.command()
def decode(
    size: Annotated[str, typer.Option(help="Of the Transformer, such as base or big.")] = "base",
    vocab: Annotated[int, typer.Option(min=100, help="Vocabulary.")] = 32_000,
    length: Annotated[int, typer.Option(min=11, help="Tokens of source and target.")] = 27,
    batch: Annotated[int, typer.Option(min=1, help="Sentences at once, besides one alone.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds of each.")] = 10,
    device: Device = None,
    bf16: Bf16 = False,
    seed: Annotated[int, typer.Option(help="Seed of weights and inputs.")] = 0,
    json: JsonPath = None,
) -> None:
    """All words at once against word by word: latency and throughput with random weights."""
    from oaxe.support.console import new_console

    check_output(json)

    from benchmarks.decoding import run
    from oaxe.support.devices import usable_device

    run(
        size=size,
        vocab=vocab,
        length=length,
        batch=batch,
        repeats=repeats,
        device=usable_device(device),
        bf16=bf16,
        seed=seed,
        json_path=json,
        console=new_console(),
    )


@bench.command()
def training(
    configuration: Configuration,
    changes: Overrides = None,
    updates: Annotated[int, typer.Option(min=1, help="Timed updates of each loop.")] = 50,
    json: JsonPath = None,
) -> None:
    """The trainer with its data against a bare loop over batches in memory."""
    from oaxe.support.console import new_console

    check_output(json)

    from benchmarks.training import run
    from oaxe.commands.config import find_configuration
    from oaxe.training.settings import load_settings

    settings = load_settings(find_configuration(configuration), changes or [])
    run(settings, updates, json, new_console())
