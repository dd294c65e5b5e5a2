"""The log of a run: a live line, metrics.jsonl and TensorBoard."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from oaxe.support import strict_json
from oaxe.support.files import write_whole

SILENCE = 30  # seconds; then a line says that training goes on, where there is no progress bar


class RunLog:
    """One record a line. A resumed run drops what came after its checkpoint and writes it again.

    Args:
        step: updates that are done.
        validated: False if the validation that belongs to this step is still to come.
    """

    def __init__(
        self,
        folder: Path,
        console: Console,
        *,
        step: int,
        validated: bool = True,
        title: str = "training",
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self.console = console
        path = folder / "metrics.jsonl"
        last = {"train": step, "valid": step if validated else step - 1}
        kept = [record for record in _records(path) if record["step"] <= last[record["what"]]]
        write_whole(path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            speed_estimate_period=600,  # the time that is left, also where an update takes minutes
        )
        self._begun = step
        self._shown = time.monotonic()  # when something was printed
        self._task = self._progress.add_task(title, total=None, completed=step, figures="starting")
        self._progress.start()

    def write(self, record: dict[str, Any]) -> None:
        """Store a record; it needs ``step`` and ``what`` ("train" or "valid")."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                self._board.add_scalar(f"{record['what']}/{name}", value, record["step"])
        line = in_one_line(record)
        if record["what"] == "valid" or not self.console.is_terminal:
            self.console.print(f"{record['what']}: {line}")
            self._shown = time.monotonic()
        if record["what"] == "train":
            self._progress.update(self._task, figures=line)
            self._begun = -1  # from now on there are figures

    def advance(self, step: int, of: float) -> None:
        self._progress.update(self._task, completed=step, total=of)
        if self._begun >= 0:
            self._progress.update(self._task, figures=f"step {step}")
        first = step == self._begun + 1
        if not self.console.is_terminal and (first or time.monotonic() > self._shown + SILENCE):
            self.console.print(f"step {step:,} of {of:,.0f}")
            self._shown = time.monotonic()

    def close(self) -> None:
        self._progress.stop()
        self._file.close()
        self._board.close()


FORMATS = {
    "step": "step {:d}", "epoch": "epoch {:.2f}", "loss": "loss {:.3f}", "bleu": "BLEU {:.2f}",
    "exact_match": "exact match {:.1f} %", "log_probability": "log-probability {:.3f}",
    "length_accuracy": "length {:.1%}", "lr": "lr {:.2e}", "tokens_per_second": "{:,.0f} tok/s",
    "truncated": "truncated {:.1%}", "displacement": "moved {:.2f}", "best": "best {:.2f}",
    "seconds": "", "what": "", "length_loss": "",
}  # fmt: skip


def in_one_line(record: Mapping[str, Any]) -> str:
    """A record as text; statistics of a system that have no format of their own come last.

    Example:
        >>> in_one_line({"revealed": 0.25, "loss": 1.0})
        'loss 1.000, revealed 0.250'
    """
    known = {name: text for name, text in FORMATS.items() if name in record}
    formats = known | {name: name + " {:.3f}" for name in record if name not in FORMATS}
    return ", ".join(text.format(record[name]) for name, text in formats.items() if text)


def _records(path: Path) -> list[dict[str, Any]]:
    """Up to the first that is damaged: a kill can leave half a line, a power cut anything."""
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                record = strict_json.parse(line)
            except ValueError:
                break
            whole = isinstance(record, dict) and record.get("what") in ("train", "valid")
            if not whole or not isinstance(record.get("step"), int):
                break
            records.append(record)
    return records
