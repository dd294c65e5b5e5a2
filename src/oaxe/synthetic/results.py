"""Tables and pictures of many trained models: Markdown, CSV and a page."""

import csv
import io
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from oaxe.html import page, paragraph, svg, table
from oaxe.synthetic.recipe import METHODS, PRESETS
from oaxe.training.checkpoint import write_whole

if TYPE_CHECKING:
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
)  # fmt: skip


def read_results(folder: Path) -> Records:
    """All finished models, in the order of their names; each knows the part it belongs to."""
    records = []
    for path in sorted(folder.glob("*/*.json")):
        record = json.loads(path.read_text())
        record["part"] = path.parent.name.split("-")[0]
        record["seconds_to_95"] = next(
            (round(p["seconds"], 1) for p in record["curve"] if p["exact_match"] >= REACHED), None
        )
        records.append(record)
    return records


def write_results(records: Records, out: Path, preset: str) -> None:
    rows = [record["recipe"] | record for record in records]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(out / "results.csv", text.getvalue())
    tables = {title: (head, body) for title, head, body in all_tables(records) if body}
    write_whole(out / "results.md", "\n".join(markdown(t, *of) for t, of in tables.items()))
    figures = {
        name: figure
        for name, figure in {
            "Exact match by number of orders": by_modes(of_part(records, "modes")),
            "Exact match by updates of XE before OaXE": by_switch(records),
        }.items()
        if figure is not None
    }
    write_whole(out / "results.html", results_page(tables, figures, preset))
    if "Exact match by number of orders" in figures:
        figures["Exact match by number of orders"].savefig(
            out / "exact_match.png", dpi=150, bbox_inches="tight"
        )


def of_part(records: Records, *parts: str) -> Records:
    return [record for record in records if record["part"] in parts]


def groups(records: Records, *keys: str) -> dict[tuple[Any, ...], Records]:
    found: dict[tuple[Any, ...], Records] = defaultdict(list)
    for record in records:
        found[tuple((record["recipe"] | record)[key] for key in keys)].append(record)
    return dict(sorted(found.items(), key=lambda item: str(item[0]).rjust(12)))


def over_seeds(records: Records, figure: str = "exact_match", form: str = ".1f") -> str:
    """Mean and standard deviation over seeds."""
    values = [record[figure] for record in records]
    if not values:
        return "-"
    spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{spread}"


def all_tables(records: Records) -> list[tuple[str, list[str], list[list[str]]]]:
    main = of_part(records, "modes")
    modes = sorted({record["modes"] for record in main})
    five = [r for r in of_part(records, "modes") if r["modes"] == max(modes, default=0)]
    methods = [m for m in METHODS if any(r["method"] == m for r in records)]

    def row(method: str, of: Records, key: str, values: list[Any]) -> list[str]:
        mine = [record["recipe"] | record for record in of if record["method"] == method]
        cells = [over_seeds([r for r in mine if r[key] == value]) for value in values]
        return [METHODS[method].title, *cells]

    def swept(title: str, part: str, key: str, what: str) -> tuple[str, list[str], list[list[str]]]:
        own = of_part(records, part)
        # the recipe itself is one point of each sweep: its first seed is among the main models
        middle = [r for r in five if r["seed"] == 1] if own else []
        points = sorted({(r["recipe"] | r)[key] for r in own + middle})
        names = [m for m in methods if any(r["method"] == m for r in own)]
        body = [row(m, own + middle, key, points) for m in names]
        return title, [what, *map(str, points)], body

    scratch = of_part(records, "scratch")
    return [
        (
            "Exact match (%) by number of orders",
            ["trained with", *map(str, modes)],
            [row(m, main, "modes", modes) for m in methods if any(r["method"] == m for r in main)],
        ),
        (
            "Five orders",
            ["trained with", "exact match, %", "repetition, %", "confidence", "seconds to 95 %"],
            [
                [
                    METHODS[m].title,
                    over_seeds(of),
                    over_seeds(of, "repetition"),
                    over_seeds(of, "confidence", ".2f"),
                    ", ".join(str(r["seconds_to_95"] or "never") for r in of),
                ]
                for (m,), of in groups(five + scratch, "method").items()
            ],
        ),
        (
            "Which of five orders is chosen (% of the outputs)",
            ["trained with", *(five[0]["chosen"] if five else [])],
            [
                [METHODS[m].title]
                + [
                    f"{mean(100 * r['chosen'][name] / sum(r['chosen'].values()) for r in of):.1f}"
                    for name in of[0]["chosen"]
                ]
                for (m,), of in groups(five, "method").items()
            ],
        ),
        swept("Exact match (%) by longest sequence", "lengths", "longest", "trained with"),
        swept("Exact match (%) by different numbers", "numbers", "numbers", "trained with"),
        swept(
            "Exact match (%) by updates of XE before OaXE", "switch", "xe_updates", "trained with"
        ),
    ]


def markdown(title: str, head: list[str], body: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body]]
    return f"**{title}**\n\n" + "\n".join(lines) + "\n"


def by_modes(records: Records) -> "Figure | None":
    """The paper's figure: lines of means, bands from the worst to the best seed."""
    figure, axes = _axes("number of orders")
    for (method,), of in groups(records, "method").items():
        by = groups(of, "modes")
        x = [modes for (modes,) in by]
        values = [[record["exact_match"] for record in same] for same in by.values()]
        colour = COLOURS[method]
        axes.plot(x, list(map(mean, values)), "o-", color=colour, label=METHODS[method].title)
        axes.fill_between(
            x, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2
        )
        axes.set_xticks(x)
    return _finished(figure, axes) if records else None


def by_switch(records: Records) -> "Figure | None":
    own = of_part(records, "switch")
    middle = [r for r in of_part(records, "modes") if r["modes"] == 5 and r["seed"] == 1]
    figure, axes = _axes("updates of XE before OaXE")
    for method in ("oaxe", "oaxe-pretrained"):
        points = sorted(
            (r["recipe"]["xe_updates"], r["exact_match"])
            for r in own + middle
            if r["method"] == method
        )
        if points:
            axes.plot(
                *zip(*points, strict=True), "o-", color=COLOURS[method], label=METHODS[method].title
            )
    return _finished(figure, axes) if own else None


def _axes(what: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.8))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(what)
    axes.set_ylabel("exact match, %")
    axes.set_ylim(-4, 104)
    axes.grid(axis="y", color="gray", alpha=0.3, linewidth=0.8)
    return figure, axes


def _finished(figure: "Figure", axes: Any) -> "Figure":
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.01), ncols=2, frameon=False)
    return figure


def results_page(tables: dict[str, Any], figures: dict[str, "Figure"], preset: str) -> str:
    recipe = PRESETS[preset]
    body = [
        paragraph(
            f"Preset {preset}: {recipe.numbers:,} numbers, {recipe.shortest} to {recipe.longest} "
            f"in a row, {recipe.train:,} training pairs, {recipe.updates} updates of "
            f"{recipe.update_tokens:,} tokens; where OaXE or AXE follows XE, XE has "
            f"{recipe.xe_updates} of them. Exact match counts any of the orders that were trained."
        )
    ]
    for title, figure in figures.items():
        body += [f"<h2>{title}</h2>", svg(figure, title)]
    for title, (head, rows) in tables.items():
        body.append(table(title, head, rows))
    return page("Numbers in several orders: XE, AXE and OaXE", "\n".join(body))
