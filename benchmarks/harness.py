"""How every benchmark takes options, times its contenders, prints tables and writes JSON."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.progress import track
from rich.table import Table

from oaxe.support.console import new_console
from oaxe.support.environment import environment, machine
from oaxe.support.files import check_output, write_json
from oaxe.support.tables import grid
from oaxe.support.timing import Timing, take_turns, wall_clock

Contenders = Mapping[str, Callable[[], object]]
Column = Mapping[str, float]  # a number for each contender

Repeats = Annotated[int, typer.Option(min=1, help="Timed rounds; a contender runs once in each.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and inputs.")]
Size = Annotated[str, typer.Option(help="Size of the Transformer, such as base or big.")]
Vocab = Annotated[int, typer.Option(min=100, help="Size of the vocabulary, in subwords.")]
Tokens = Annotated[int, typer.Option(min=1, help="Target tokens in the batch.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Prepared folder. Default: synthetic sentences."),
]
JsonPath = Annotated[
    Path | None, typer.Option(help="Also write every sample to this file.", dir_okay=False)
]


class Report:
    """Tables on the console, and all their numbers in a JSON file, written after each table."""

    def __init__(self, path: Path | None, **settings: Any) -> None:
        check_output(path)
        self._path = path
        self._content: dict[str, Any] = {"environment": environment(), **settings}
        self.console = new_console()
        shown = ", ".join(f"{name} {value}" for name, value in {**machine(), **settings}.items())
        self.console.print(shown)

    def measure(
        self,
        contenders: Contenders,
        repeats: int,
        title: str,
        clock: Callable[[Callable[[], object]], float] = wall_clock,
    ) -> dict[str, Timing]:
        """Time the contenders in turns, after a warm-up."""
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for name, duration in track(
            take_turns(dict(contenders), repeats, clock),
            description=title,
            total=repeats * len(contenders),
            console=self.console,
            transient=True,
        ):
            seconds[name].append(duration)
        return {name: Timing(values) for name, values in seconds.items()}

    def add(
        self,
        title: str,
        timings: Mapping[str, Timing],
        columns: Mapping[str, Mapping[str, Any]],
        **about: Any,
    ) -> None:
        """Print a table of the timings with more columns, and store it under its title.

        Without timings the columns alone.
        """
        names = timings or dict.fromkeys(name for column in columns.values() for name in column)
        details = ", ".join(f"{name} {_number(value)}" for name, value in about.items())
        title_line = f"{title}: {details}" if about else title
        table = Table(title=title_line, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("", no_wrap=True)
        for header in ("ms", "spread, ms", *columns) if timings else columns:
            table.add_column(header, justify="right")
        for name in names:
            numbers = [_number(column.get(name, math.nan)) for column in columns.values()]
            if timings:
                timing = timings[name]
                numbers = [_number(timing.median * 1e3), timing.spread, *numbers]
            table.add_row(name, *numbers)
        self.console.print(table)
        self._content[title] = {
            **about,
            "contenders": {
                name: ({"seconds": timings[name].seconds} if timings else {})
                | {header: column[name] for header, column in columns.items() if name in column}
                for name in names
            },
        }
        if self._path is not None:
            write_json(self._path, self._content)


def relative_time(timings: Mapping[str, Timing], baseline: str) -> Column:
    """The median over rounds of the ratio to the baseline: a slow moment of the machine cancels."""
    if baseline not in timings:
        return {}
    base = np.array(timings[baseline].seconds)
    return {
        name: float(np.median(np.array(timing.seconds) / base)) for name, timing in timings.items()
    }


def speed_up(timings: Mapping[str, Timing], baseline: str) -> Column:
    """How many times faster than the baseline, by medians."""
    return {name: timings[baseline].median / timing.median for name, timing in timings.items()}


def _number(value: Any) -> str:
    """A number with about four digits."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if not math.isfinite(value) or value == 0:
        return "-" if math.isnan(value) else str(value)
    return f"{value:,.{min(max(3 - math.floor(math.log10(abs(value))), 0), 4)}f}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table; nothing, if it has no rows."""
    return grid(head, rows).rstrip() if rows else ""
