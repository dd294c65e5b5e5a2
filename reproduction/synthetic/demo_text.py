"""Words and numbers of the demonstration: printed here, and on its page in the same words."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reproduction.synthetic.task import ORDERINGS, reorder

Result = Mapping[str, Any]  # result.json
Mark = Literal["right", "repeated", "misplaced"]

NAMES = {"xe": "XE", "oaxe": "OaXE"}
SUCCESS = 95.0  # percent exact match that OaXE should reach
FAR = 30.0  # percent points
LEGEND: dict[Mark, str] = {
    "repeated": "more often in the output than in the source",
    "misplaced": "not what the nearest right answer has at this position",
}
TERMINAL: dict[Mark, str] = {
    "right": "",
    "repeated": "bold underline red",
    "misplaced": "underline yellow",
}
MEASURES = {
    "exact_match": ("exact match", "{:.1f} %"),
    "repetition": ("repetition", "{:.1f} %"),
    "confidence": ("mean confidence", "{:.2f}"),
}
# The parts of a complete result, by the name that a reader is told when one is missing.
PARTS = {
    "the task": ("task",),
    "the updates": ("updates",),
    "the scores of XE": ("exact_match", "xe"),
    "the scores of OaXE": ("exact_match", "oaxe"),
    "the examples": ("examples",),
    "the learning curve of XE": ("curves", "xe"),
    "the learning curve of OaXE": ("curves", "oaxe"),
    "the orders chosen by XE": ("chosen", "xe"),
    "the orders chosen by OaXE": ("chosen", "oaxe"),
    "the cost matrix": ("matrix", "order"),
}


def show(result: Result, console: Console) -> None:
    """The table, its interpretation and the examples."""
    head, *rows = score_table(result)
    table = Table()
    for column, name in enumerate(head):
        table.add_column(name, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(Text(interpretation(result), style="bold"))
    if gaps(result):
        console.print(Text(gaps(result), style="yellow"))
    examples = part(result, "examples") or []
    for example in examples:
        console.print()
        for line in example_lines(example, modes_of(result)):
            console.print(line)
    if examples:
        console.print()
        for mark, meaning in LEGEND.items():
            console.print(Text.assemble((mark, TERMINAL[mark]), f": {meaning}"))


def example_lines(example: Result, modes: int) -> list[Text]:
    """Source and outputs of one example, number below number."""
    source = example["source"]
    width = 1 + max(len(str(n)) for name in ("source", *NAMES) for n in example.get(name) or [0])
    lines = [Text("source" + "".join(f"{number:>{width}}" for number in source), style="dim")]
    for key, name in NAMES.items():
        output = example.get(key)
        if output is None:
            continue
        line = Text(f"{name:<6}")
        for number, mark in zip(output, marks(output, source, modes), strict=True):
            line.append(" " * (width - len(str(number))))
            line.append(str(number), style=TERMINAL[mark])
        lines.append(line.append(f" {verdict(output, source, modes)}"))
    return lines


def marks(output: list[int], source: list[int], modes: int) -> list[Mark]:
    """What is wrong with each number of an output, if anything.

    A number is *repeated* where it has been output as often as the source has it, and once at
    least; or else *misplaced* where the nearest right answer has another number.

    Example:
        >>> marks([2, 2, 4, 3], [1, 2, 3, 4], modes=1)
        ['misplaced', 'repeated', 'misplaced', 'misplaced']
        >>> marks([4, 3, 2, 1], [1, 2, 3, 4], modes=2)
        ['right', 'right', 'right', 'right']
    """
    _, answer = nearest(output, source, modes)
    in_source, so_far = Counter(source), Counter[int]()
    found: list[Mark] = []
    for position, number in enumerate(output):
        so_far[number] += 1
        if so_far[number] > max(1, in_source[number]):
            found.append("repeated")
        else:
            found.append("right" if [number] == answer[position : position + 1] else "misplaced")
    return found


def nearest(output: list[int], source: list[int], modes: int) -> tuple[str, list[int]]:
    """The right answer that agrees with an output at most positions, after its ordering's name.

    It is the first in the order of ORDERINGS if there are several.
    """
    answers = {ORDERINGS[mode]: reorder(source, mode) for mode in range(modes)}

    def agreement(name: str) -> int:
        return sum(a == b for a, b in zip(output, answers[name], strict=False))

    best = max(answers, key=agreement)
    return best, answers[best]


def verdict(output: list[int], source: list[int], modes: int) -> str:
    name, answer = nearest(output, source, modes)
    return f"✓ {name}" if output == answer else f"✗ nearest: {name}"


def score_table(result: Result) -> list[list[str]]:
    """The table of results: its head, then a row for each loss."""
    rows = [["trained with", *(name for name, _ in MEASURES.values())]]
    for key, name in NAMES.items():
        values = [(form, part(result, name, key)) for name, (_, form) in MEASURES.items()]
        rows.append(
            [name, *("-" if value is None else form.format(value) for form, value in values)]
        )
    return rows


def interpretation(result: Result) -> str:
    """One line on what the exact match of the two means."""
    xe, oaxe = (part(result, "exact_match", key) for key in NAMES)
    if xe is None or oaxe is None:
        return " ".join(_so_far(result, key) for key in NAMES)
    both = f"XE gets {xe:.1f} % of the sequences right, OaXE {oaxe:.1f} %"
    if oaxe >= SUCCESS and oaxe - xe >= FAR:
        return f"{both}: XE mixes the orders within an answer, OaXE settles on one."
    if oaxe >= SUCCESS:
        return f"{both}: XE does well here too, so this task does not show what sets them apart."
    if not result.get("finished"):
        why = "it was stopped early, and more updates may help."
    else:
        why = "another seed, or more updates with XE before the switch, may help."
    if oaxe - xe >= FAR:
        return f"{both}: OaXE is far ahead, but short of {SUCCESS:.0f} %; {why}"
    return f"{both}: OaXE did not succeed in this run; {why}"


def _so_far(result: Result, key: str) -> str:
    name, value = NAMES[key], part(result, "exact_match", key)
    if value is not None:
        return f"{name} gets {value:.1f} % of the sequences right."
    points = curve(result, key)
    if points:
        step, value = points[-1]
        return f"{name} was not tested; at update {step} it had {value:.1f} % right."
    return f"{name} was not tested."


def gaps(result: Result) -> str:
    """One line on what a result lacks; empty for a complete one."""
    stopped = [] if result.get("finished") else ["This run was stopped before its end."]
    absent = [what for what, names in PARTS.items() if part(result, *names) in (None, [], {})]
    return " ".join(stopped + ([f"Missing: {', '.join(absent)}."] if absent else []))


def part(result: Result, *names: str) -> Any:
    """A part of a result that may have been stopped at any time; None where it is not there."""
    value: Any = result
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def curve(result: Result, key: str) -> list[tuple[int, float]]:
    """Update and exact match, as often as measured."""
    points = part(result, "curves", key) or []
    return [(p["step"], p["exact_match"]) for p in points if part(p, "exact_match") is not None]


def modes_of(result: Result) -> int:
    return part(result, "task", "modes") or len(ORDERINGS)
