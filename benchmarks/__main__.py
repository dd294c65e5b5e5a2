"""python -m benchmarks NAME: all contenders on the same inputs in one run."""

from collections.abc import Callable

import typer

from benchmarks.assignment import assignment
from benchmarks.cpu import cpu
from benchmarks.cpu_quality import cpu_quality
from benchmarks.dag import dag
from benchmarks.decode import decode
from benchmarks.detection import detection
from benchmarks.losses import losses
from benchmarks.page import page
from benchmarks.serve import serve
from benchmarks.sets import sets
from benchmarks.step import step
from benchmarks.training import training
from oaxe.commands.app import run

app = typer.Typer(
    help="Measure speed and memory, all contenders on the same inputs in one run.",
    no_args_is_help=True,
)
commands: list[Callable[..., None]] = [
    losses,
    assignment,
    detection,
    sets,
    step,
    dag,
    decode,
    cpu,
    cpu_quality,
    training,
    serve,
    page,
]
for command in commands:
    app.command()(command)

if __name__ == "__main__":
    run(app)
