"""``oaxe train``."""

import typer

from oaxe.commands.config import find_configuration
from oaxe.commands.options import Configuration, Overrides, Systems
from oaxe.support.errors import EXIT_INTERRUPTED


def train(configuration: Configuration, changes: Overrides = None, systems: Systems = None) -> None:
    """Train a model. The same command continues a run that was stopped.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m oaxe train NAME_OR_FILE
    """
    from oaxe.support.console import new_console
    from oaxe.training.settings import load_settings

    settings = load_settings(find_configuration(configuration), changes or [])

    from oaxe.training.run import train
    from oaxe.training.trainer import INTERRUPTED

    if train(settings, new_console(), systems or ())["stopped"] == INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)
