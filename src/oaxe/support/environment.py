"""The machine, the versions and the command that a result comes from."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from oaxe import __version__


def environment() -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "commit": _commit(),
        **machine(),
        "sentencepiece": version("sentencepiece"),
        "sacrebleu": version("sacrebleu"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "ranks": int(os.environ.get("WORLD_SIZE", "1")),
    }


def machine() -> dict[str, str | int]:
    """The part of the environment that a measured time depends on."""
    return {
        "oaxe": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of the source tree that this package runs from.

    A copy of it without its history takes the commit from OAXE_COMMIT.
    """
    if given := os.environ.get("OAXE_COMMIT"):
        return given
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
