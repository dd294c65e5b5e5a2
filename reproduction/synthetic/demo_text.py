"""Words and numbers of the demonstration: printed here, and on its page in the same words."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from oaxe.support.tables import NOTHING, TextTable, markdown
from reproduction.synthetic.task import ORDERINGS, reorder

Result = Mapping[str, Any]  # result.json, see reproduction.synthetic.demo
Mark = Literal["right", "repeated", "misplaced"]

NAMES = {"xe": "XE", "oaxe": "OaXE"}
SUCCESS = 95.0  # percent exact match that OaXE should reach
FAR = 30.0  # percent points
EXAMPLES = 3  # that are shown
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


def show(result: Result, console: Console) -> None:
    """The table, its interpretation and the examples."""
    console.print(markdown(score_table(result)))
    console.print(Text(interpretation(result), style="bold"))
    for source, outputs in examples(result):
        width = 1 + max(len(str(n)) for row in (source, *outputs.values()) for n in row)
        line = "source" + "".join(f"{number:>{width}}" for number in source)
        console.print(Text(f"\n{line}", style="dim"))
        for name, output in outputs.items():
            text = Text(f"{name:<6}")
            for number, mark in zip(output, marks(output, source), strict=True):
                text.append(" " * (width - len(str(number))))
                text.append(str(number), style=TERMINAL[mark])
            console.print(text.append(f" {verdict(output, source)}"))
    if result["scores"]:
        console.print()
        for mark, meaning in LEGEND.items():
            console.print(Text.assemble((mark, TERMINAL[mark]), f": {meaning}"))


def examples(result: Result) -> Iterator[tuple[list[int], dict[str, list[int]]]]:
    """The first test sources, each with the outputs of the models that were tested."""
    tested = {NAMES[key]: result["scores"][key]["examples"] for key in NAMES if tests(result, key)}
    for number in range(EXAMPLES if tested else 0):
        outputs = {name: found[number]["output"] for name, found in tested.items()}
        yield next(iter(tested.values()))[number]["source"], outputs


def tests(result: Result, key: str) -> Result:
    """The scores of a model; empty if the run was stopped before its test."""
    return result["scores"].get(key, {})


def marks(output: list[int], source: list[int], modes: int = len(ORDERINGS)) -> list[Mark]:
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
    agreement = {
        name: sum(a == b for a, b in zip(output, answer, strict=False))
        for name, answer in answers.items()
    }
    best = max(answers, key=agreement.__getitem__)
    return best, answers[best]


def verdict(output: list[int], source: list[int], modes: int = len(ORDERINGS)) -> str:
    name, answer = nearest(output, source, modes)
    return f"✓ {name}" if output == answer else f"✗ nearest: {name}"


def score_table(result: Result) -> TextTable:
    rows = [
        [name]
        + [
            form.format(tests(result, key)[measure]) if tests(result, key) else NOTHING
            for measure, (_, form) in MEASURES.items()
        ]
        for key, name in NAMES.items()
    ]
    head = ["trained with", *(name for name, _ in MEASURES.values())]
    return TextTable("Measured on test sequences", head, rows)


def interpretation(result: Result) -> str:
    """What the exact match of the two means, in one line."""
    if len(result["scores"]) < len(NAMES):
        return " ".join(["This run was stopped before its end.", *so_far(result)])
    xe, oaxe = (tests(result, key)["exact_match"] for key in NAMES)
    both = f"XE gets {xe:.1f} % of the sequences right, OaXE {oaxe:.1f} %"
    if oaxe >= SUCCESS and oaxe - xe >= FAR:
        return f"{both}: XE mixes the orders within an answer, OaXE settles on one."
    if oaxe >= SUCCESS:
        return f"{both}: XE does well here too, so this task does not show the difference."
    why = "another seed, or more updates with XE before the switch, may help."
    if oaxe - xe >= FAR:
        return f"{both}: OaXE is far ahead, but short of {SUCCESS:.0f} %; {why}"
    return f"{both}: OaXE did not succeed in this run; {why}"


def so_far(result: Result) -> Iterator[str]:
    for key, name in NAMES.items():
        points = result["curves"][key]
        if scores := tests(result, key):
            yield f"{name} gets {scores['exact_match']:.1f} % of the sequences right."
        elif points:
            step, value = points[-1]["step"], points[-1]["exact_match"]
            yield f"{name} was not tested; at update {step} it had {value:.1f} % right."
        else:
            yield f"{name} was not tested."
