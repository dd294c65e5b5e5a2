"""JSON as plain values; text that is not JSON, or is nested too deeply, is a ValueError."""

import json
from pathlib import Path
from typing import Any


def parse(text: str | bytes) -> Any:
    """The value that a text stands for.

    Example:
        >>> parse('{"lr": 1e-3}')
        {'lr': 0.001}
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read(path: Path) -> Any:
    """The value in a file; OSError if it cannot be read."""
    return parse(path.read_text(encoding="utf-8"))
