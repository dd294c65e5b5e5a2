import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, which are forgotten afterwards, to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    forget_modules(tmp_path)


def forget_modules(folder: Path) -> None:
    """As in a process that has not imported those of this folder."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
