"""What is said about one table of the paper, before it becomes files."""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oaxe.evaluation.page import COLOURS
from oaxe.support.tables import TextTable as Figures
from reproduction.translation.records import Records
from reproduction.translation.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT_OF_DOMAIN = {"ott2018", "newstest2014"}


@dataclass
class Sheet:
    """All that is said about one table of the paper."""

    tables: list[Figures] = field(default_factory=list)
    pictures: list[tuple[str, "Figure"]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)  # one a line of the CSV
    notes: list[str] = field(default_factory=list)
    body: str = ""  # more of the page


@dataclass(frozen=True)
class Block:
    """The columns of one test set of one data set."""

    records: Records
    test: str
    is_valid: bool = False

    @property
    def label(self) -> str:
        dataset = self.records.place.dataset
        if self.is_valid:
            return f"{dataset} valid"
        if self.test == "test":
            return dataset
        away = self.test in OUT_OF_DOMAIN and not dataset.startswith("wmt14")
        return f"{dataset} on {self.test}{', out of domain' * away}"


def blocks_of(table: Table, records: Records) -> list[Block]:
    if table.text in ("test", "valid"):
        return [Block(records, "test", table.text == "valid")]
    wanted = {"every": (True, False), "several": (True,), "single": (False,)}[table.text]
    return [Block(records, test) for test, most in records.tests().items() if (most > 1) in wanted]


def origin(
    records: Records, system: str, seed: int, *tests: str, measure: str = ""
) -> dict[str, Any]:
    """Where a figure comes from, with the signatures of BLEU on the test sets that it is of."""
    result = records.of(system).get(seed)
    if result is None:
        return {}
    place, environment = records.place, result["environment"]
    scores = [result["tests"][test] for test in tests if test in result["tests"]]
    signatures = dict.fromkeys(score["bleu"]["signature"] for score in scores)
    if measure == "single_bleu":
        signatures = dict.fromkeys(re.sub("nrefs:[^|]+", "nrefs:1", s) for s in signatures)
    return {
        "preset": place.preset,
        "updates": result["training"]["step"],
        "seconds": result["training"]["seconds"],
        "commit": environment["commit"],
        "device": environment["device"],
        "signature": ", ".join(signatures) or None,
        "result": place.result(system, seed).relative_to(place.out).as_posix(),
    }


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def finished(figure: "Figure", axis: str) -> "Figure":
    (axes,) = figure.axes
    axes.set_xlabel(axis)
    axes.set_ylabel("BLEU")
    axes.grid(axis="y", color="gray", alpha=0.3, linewidth=0.8)
    if axes.lines:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.01), frameon=False, fontsize=11)
    return figure
