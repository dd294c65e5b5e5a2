"""Tables and pictures of many trained models: Markdown, CSV and a page."""

import csv
import io
import json
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from oaxe.support.files import write_whole
from oaxe.support.html import page, paragraph, svg, table
from oaxe.support.tables import Figures, markdown, mean_and_spread
from reproduction.synthetic.outcome import NONE
from reproduction.synthetic.recipe import METHODS, PRESETS
from reproduction.synthetic.task import ORDERINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = list[dict[str, Any]]
COLOURS = {
    "xe": "#d1495b", "axe": "#edae49", "oaxe": "#00798c", "oaxe-pretrained": "#6a4c93",
    "oaxe-annealed": "#5c946e", "oaxe-scratch": "#888888",
}  # fmt: skip
REACHED = 95.0  # percent
COLUMNS = (
    "part", "method", "modes", "numbers", "shortest", "longest", "xe_updates", "updates", "seed",
    "exact_match", "repetition", "confidence", "seconds", "seconds_to_95",
    *(f"chosen {name}" for name in (*ORDERINGS, NONE)),
)  # fmt: skip


def read_results(folder: Path) -> Records:
    """All finished models; each knows its part, and its recipe is spread out beside its figures."""
    records = []
    for path in sorted(folder.glob("*/*.json")):
        record = json.loads(path.read_text())
        record |= record.pop("recipe")
        record["part"] = path.parent.name.split("-")[0]
        record["seconds_to_95"] = seconds_to(REACHED, record)
        record |= {f"chosen {name}": count for name, count in record["chosen"].items()}
        records.append(record)
    return records


def seconds_to(percent: float, record: dict[str, Any]) -> float | None:
    """Of updates, until exact match was at least that and stayed so; XE's own part apart."""
    switch = record["xe_updates"] if METHODS[record["method"]].pretrained else 0
    reached = None
    for point in reversed(record["curve"]):
        if point["exact_match"] < percent or point["step"] <= switch:
            break
        reached = round(point["seconds"], 1)
    return reached


def write_results(records: Records, out: Path, preset: str) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    write_whole(out / "results.csv", text.getvalue())
    tables = [results for results in all_tables(records) if results.rows]
    write_whole(out / "results.md", "\n".join(map(markdown, tables)))
    main = by_modes(records)
    write_whole(out / "results.html", results_page(tables, [main, by_switch(records)], preset))
    if main is not None:
        main.savefig(out / "exact_match.png", dpi=150, bbox_inches="tight")


def all_tables(records: Records) -> list[Figures]:
    main = of(records, part="modes")
    modes = sorted({record["modes"] for record in main})
    five = of(main, modes=5)
    orders = list(five[0]["chosen"]) if five else []
    return [
        compare("Exact match (%) by number of orders", main, "modes", modes),
        Figures(
            "Five orders",
            ["trained with", "exact match, %", "repetition, %", "confidence", "seconds to 95 %"],
            [
                [
                    METHODS[method].title,
                    over_seeds(mine),
                    over_seeds(mine, "repetition"),
                    over_seeds(mine, "confidence", ".2f"),
                    ", ".join(str(record["seconds_to_95"] or "never") for record in mine),
                ]
                for method, mine in by_method(five + of(records, part="scratch")).items()
            ],
        ),
        Figures(
            "Which of five orders is chosen (% of the outputs)",
            ["trained with", *orders],
            [
                [METHODS[method].title, *(share_of(mine, name) for name in orders)]
                for method, mine in by_method(five).items()
            ],
        ),
        sweep(records, "lengths", "longest", "Exact match (%) by longest sequence"),
        sweep(records, "numbers", "numbers", "Exact match (%) by different numbers"),
        sweep(records, "switch", "xe_updates", "Exact match (%) by updates of XE before OaXE"),
    ]


def compare(title: str, records: Records, key: str, values: list[Any]) -> Figures:
    """A row a method, a column a value."""
    rows = [
        [METHODS[method].title, *(over_seeds(of(mine, **{key: value})) for value in values)]
        for method, mine in by_method(records).items()
    ]
    return Figures(title, ["trained with", *map(str, values)], rows)


def sweep(records: Records, part: str, key: str, title: str) -> Figures:
    points = with_middle(records, part)
    return compare(title, points, key, sorted({record[key] for record in points}))


def with_middle(records: Records, part: str) -> Records:
    """The models of a sweep, and that of the recipe itself, which is a point of every sweep."""
    own = of(records, part=part)
    middle = of(records, part="modes", modes=5, seed=1) if own else []
    return own + [r for r in middle if r["method"] in by_method(own)]


def of(records: Records, **values: Any) -> Records:
    return [r for r in records if all(r[key] == value for key, value in values.items())]


def by_method(records: Records) -> dict[str, Records]:
    """In the order of METHODS, those that there are."""
    found = {method: of(records, method=method) for method in METHODS}
    return {method: mine for method, mine in found.items() if mine}


def over_seeds(records: Records, figure: str = "exact_match", form: str = ".1f") -> str:
    """Mean and standard deviation."""
    return mean_and_spread([record[figure] for record in records], form)


def share_of(records: Records, ordering: str) -> str:
    shares = [100 * r["chosen"][ordering] / sum(r["chosen"].values()) for r in records]
    return f"{mean(shares):.1f}"


def by_modes(records: Records) -> "Figure | None":
    """The paper's figure: lines of means, bands from the worst to the best seed."""
    main = of(records, part="modes")
    if not main:
        return None
    axes = _axes("number of orders")
    orders = sorted({record["modes"] for record in main})
    axes.set_xticks(orders)
    for method, mine in by_method(main).items():
        x = sorted({record["modes"] for record in mine})
        if len(x) == 1 < len(orders):
            continue  # one point is no line, and would hide others; the tables have it
        values = [[record["exact_match"] for record in of(mine, modes=modes)] for modes in x]
        low, middle, high = ([f(same) for same in values] for f in (min, mean, max))
        axes.plot(x, middle, "o-", color=COLOURS[method], label=METHODS[method].title)
        axes.fill_between(x, low, high, color=COLOURS[method], alpha=0.2)
    return _finished(axes)


def by_switch(records: Records) -> "Figure | None":
    points = with_middle(records, "switch")
    if not points:
        return None
    axes = _axes("updates of XE before OaXE")
    for method, mine in by_method(points).items():
        pairs = sorted((record["xe_updates"], record["exact_match"]) for record in mine)
        x, y = zip(*pairs, strict=True)
        axes.plot(x, y, "o-", color=COLOURS[method], label=METHODS[method].title)
    return _finished(axes)


def _axes(what: str) -> "Axes":
    from matplotlib.figure import Figure

    axes = Figure(figsize=(5.6, 3.8)).subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(what)
    axes.set_ylabel("exact match, %")
    axes.set_ylim(-4, 104)
    axes.grid(axis="y", color="gray", alpha=0.3, linewidth=0.8)
    return axes


def _finished(axes: "Axes") -> "Figure":
    from matplotlib.figure import Figure

    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.01), ncols=2, frameon=False)
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return figure


def results_page(tables: list[Figures], figures: list["Figure | None"], preset: str) -> str:
    recipe = PRESETS[preset]
    body = [
        paragraph(
            f"Preset {preset}: {recipe.numbers:,} numbers, {recipe.shortest} to {recipe.longest} "
            f"in a row, {recipe.train:,} training pairs, {recipe.updates} updates of "
            f"{recipe.update_tokens:,} tokens; where OaXE or AXE follows XE, XE has "
            f"{recipe.xe_updates} of them. Exact match counts any of the orders that were trained."
        )
    ]
    titles = "Exact match by number of orders", "Exact match by updates of XE before OaXE"
    for title, figure in zip(titles, figures, strict=True):
        if figure is not None:
            body += [f"<h2>{title}</h2>", svg(figure, title)]
    body += [table(*results) for results in tables]
    return page("Numbers in several orders: XE, AXE and OaXE", "\n".join(body))
