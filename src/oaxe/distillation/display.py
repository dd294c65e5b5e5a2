"""The progress of a distillation: a bar on a terminal, a line now and then in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress_bar(console: Console, total: int, before: int) -> Iterator[Callable[[int], int]]:
    """A function to call with the number of sentences that are done, which it returns.

    Args:
        before: sentences that earlier starts have done, which do not count for the speed.
    """
    columns = TextColumn("distilling"), BarColumn(bar_width=20), TextColumn("{task.description}")
    started = printed = time.monotonic()
    shown = -1
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)

        def show(done: int) -> int:
            nonlocal shown, printed
            if done == shown:
                return done
            shown, now = done, time.monotonic()
            text = f"{done:,} of {total:,} sentences"
            if (speed := (done - before) / max(now - started, 1e-9)) > 0:
                left = timedelta(seconds=round((total - done) / speed))
                text += f", {speed:,.1f}/s, {left} left"
            progress.update(task, completed=done, description=text)
            due = now - printed >= SECONDS_BETWEEN_LINES or done == total
            if due and not console.is_terminal:
                printed = now
                console.print(f"distilling: {text}")
            return done

        show(before)
        yield show
