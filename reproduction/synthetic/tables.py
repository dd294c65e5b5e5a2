"""Tables and charts of all models of the synthetic task."""

from statistics import mean
from typing import Any

from oaxe.support.tables import TextTable, mean_and_spread
from reproduction.charts import PERCENT, Line, line_chart
from reproduction.folder import Result
from reproduction.report import Report
from reproduction.synthetic.recipes import METHODS, Recipe
from reproduction.synthetic.scores import NONE
from reproduction.synthetic.task import ORDERINGS

Models = list[dict[str, Any]]  # flat results
REACHED = 95.0  # percent
CSV_COLUMNS = (
    "part", "method", "modes", "numbers", "shortest", "longest", "xe_updates", "updates", "seed",
    "exact_match", "repetition", "confidence", "seconds", "seconds_to_95",
    *(f"chosen {name}" for name in (*ORDERINGS, NONE)),
)  # fmt: skip


def flat(result: Result, part: str) -> dict[str, Any]:
    """A result as one line: recipe, training and scores side by side."""
    training, scores = result["training"], result["tests"]["test"]
    model = {
        "part": part,
        "method": result["experiment"],
        "modes": result["modes"],
        "seed": result["seed"],
        "seconds": training["seconds"],
        **result["recipe"],
        **scores,
        **{f"chosen {name}": number for name, number in scores["chosen"].items()},
    }
    return {**model, "seconds_to_95": seconds_to(REACHED, model, training["validations"])}


def seconds_to(
    percent: float, model: dict[str, Any], curve: list[dict[str, float]]
) -> float | None:
    """Of updates, until exact match was at least that and stayed so, after the switch from XE."""
    switch = model["xe_updates"] if METHODS[model["method"]].pretrained else 0
    reached = None
    for point in reversed(curve):
        if point.get("exact_match", 0.0) < percent or point["step"] <= switch:
            break
        reached = round(point["seconds"], 1)
    return reached


def report_of(models: Models, preset: str, recipe: Recipe) -> Report:
    switched = lines_over(with_middle(models, "switch"), "xe_updates")
    charts = [
        ("Exact match by number of orders", chart(by_modes(models), "number of orders")),
        ("Exact match by updates of XE", chart(switched, "updates of XE before OaXE")),
    ]
    return Report(
        title="Numbers in several orders: XE, AXE and OaXE",
        notes=[
            f"Preset {preset}: {recipe.numbers:,} numbers, {recipe.shortest} to {recipe.longest} "
            f"in a row, {recipe.train:,} training pairs, {recipe.updates} updates of "
            f"{recipe.update_tokens:,} tokens; where OaXE or AXE follows XE, XE has "
            f"{recipe.xe_updates} of them. Exact match counts any of the orders that were trained."
        ],
        tables=[table for table in all_tables(models) if table.rows],
        charts=[(title, figure) for title, figure in charts if figure is not None],
        csv_columns=CSV_COLUMNS,
        csv_rows=models,
    )


def all_tables(models: Models) -> list[TextTable]:
    main = select(models, part="modes")
    modes = sorted({model["modes"] for model in main})
    five = select(main, modes=5)
    orders = list(five[0]["chosen"]) if five else []
    return [
        compare("Exact match (%) by number of orders", main, "modes", modes),
        TextTable(
            "Five orders",
            ["trained with", "exact match, %", "repetition, %", "confidence", "seconds to 95 %"],
            [
                [
                    METHODS[method].title,
                    over_seeds(mine),
                    over_seeds(mine, "repetition"),
                    over_seeds(mine, "confidence", ".2f"),
                    ", ".join(str(model["seconds_to_95"] or "never") for model in mine),
                ]
                for method, mine in by_method(five + select(models, part="scratch")).items()
            ],
        ),
        TextTable(
            "Which of five orders is chosen (% of the outputs)",
            ["trained with", *orders],
            [
                [METHODS[method].title, *(share_of(mine, name) for name in orders)]
                for method, mine in by_method(five).items()
            ],
        ),
        sweep(models, "lengths", "longest", "Exact match (%) by longest sequence"),
        sweep(models, "numbers", "numbers", "Exact match (%) by different numbers"),
        sweep(models, "switch", "xe_updates", "Exact match (%) by updates of XE before OaXE"),
    ]


def compare(title: str, models: Models, key: str, values: list[Any]) -> TextTable:
    """A row a method, a column a value."""
    rows = [
        [METHODS[method].title, *(over_seeds(select(mine, **{key: value})) for value in values)]
        for method, mine in by_method(models).items()
    ]
    return TextTable(title, ["trained with", *map(str, values)], rows)


def sweep(models: Models, part: str, key: str, title: str) -> TextTable:
    points = with_middle(models, part)
    return compare(title, points, key, sorted({model[key] for model in points}))


def with_middle(models: Models, part: str) -> Models:
    """The models of a sweep, and that of the recipe itself, which is a point of every sweep."""
    own = select(models, part=part)
    middle = select(models, part="modes", modes=5, seed=1) if own else []
    return own + [model for model in middle if model["method"] in by_method(own)]


def select(models: Models, **values: Any) -> Models:
    return [m for m in models if all(m[key] == value for key, value in values.items())]


def by_method(models: Models) -> dict[str, Models]:
    """The models of each method that there are, in the order of METHODS."""
    found = {method: select(models, method=method) for method in METHODS}
    return {method: mine for method, mine in found.items() if mine}


def over_seeds(models: Models, measure: str = "exact_match", form: str = ".1f") -> str:
    """Mean and standard deviation."""
    return mean_and_spread([model[measure] for model in models], form)


def share_of(models: Models, ordering: str) -> str:
    shares = [100 * m["chosen"][ordering] / sum(m["chosen"].values()) for m in models]
    return f"{mean(shares):.1f}"


def by_modes(models: Models) -> list[Line]:
    """The paper's figure. One point is no line, and would hide others: the tables have it."""
    lines = lines_over(select(models, part="modes"), "modes")
    longest = max((len(line.points) for line in lines), default=0)
    return [line for line in lines if len(line.points) > 1 or longest == 1]


def lines_over(models: Models, key: str) -> list[Line]:
    """A line a method: exact match against ``key``."""
    return [
        Line(
            METHODS[method].title,
            [
                (value, [model["exact_match"] for model in select(mine, **{key: value})])
                for value in sorted({model[key] for model in mine})
            ],
        )
        for method, mine in by_method(models).items()
    ]


def chart(lines: list[Line], x_label: str) -> Any:
    """A chart of exact match; None without lines."""
    if not lines:
        return None
    figure, axes = line_chart(lines, x_label, "exact match, %")
    axes.set_ylim(*PERCENT)
    return figure
