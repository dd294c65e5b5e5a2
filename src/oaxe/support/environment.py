"""Where and with what a figure was made."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import oaxe


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
    """The part of it that a time depends on."""
    return {
        "oaxe": oaxe.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """Of the source tree that this package runs from; OAXE_COMMIT tells what a copy cannot know."""
    if told := os.environ.get("OAXE_COMMIT"):
        return told
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
