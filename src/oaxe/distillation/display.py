"""How far a distillation is: a bar for people, a line now and then for log files."""

import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

SECONDS_BETWEEN_LINES = 30.0


class Display:
    """Sentences that are done, over all processes, with their speed and the time left.

    Args:
        total: sentences.
        done: those that an earlier start has done; they do not count for the speed.
    """

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console, self.total, self.before = console, total, done
        self.started = self.said = time.monotonic()
        self._shown = -1
        columns = (
            TextColumn("distilling"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> "Display":
        self._progress.start()
        self.show(self.before)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int) -> int:
        """Returns what it was given."""
        if done == self._shown:
            return done
        self._shown, now = done, time.monotonic()
        speed = (done - self.before) / max(now - self.started, 1e-9)
        figures = f"{done:,} of {self.total:,} sentences"
        if speed > 0:
            left = timedelta(seconds=round((self.total - done) / speed))
            figures += f", {speed:,.1f}/s, {left} left"
        self._progress.update(self._task, completed=done, description=figures)
        late = now - self.said >= SECONDS_BETWEEN_LINES or done == self.total
        if late and not self.console.is_terminal:
            self.said = now
            self.console.print(f"distilling: {figures}", highlight=False)
        return done
