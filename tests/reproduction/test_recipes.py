"""What the tables say of themselves: systems, recipes, the paper's figures, published results."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from reproduction.__main__ import app
from reproduction.translation.paper import PAPER
from reproduction.translation.place import Place
from reproduction.translation.plan import ancestors
from reproduction.translation.recipe import ANY, PRESETS, recipe_of
from reproduction.translation.reproduce import datasets_of
from reproduction.translation.systems import SYSTEMS
from reproduction.translation.tables import TABLES

DATASET = "tatoeba-en-de"


def test_every_figure_of_the_paper_has_its_place() -> None:
    count = 0
    for name, reported in PAPER.items():
        keys = {row.key for row in TABLES[name].rows}
        labels = {column.label for column in TABLES[name].columns}
        for label, by_row in reported.columns.items():
            assert label in labels, name
            assert {*by_row} <= keys, name
            for values in by_row.values():
                assert len(values) == len(reported.datasets), name
                count += sum(number is not None for number in values)
    assert count == 149


def test_recipes_and_systems_fit_together(tmp_path: Path) -> None:
    """Settings of every system, preset and data set can be built."""
    count = 0
    for preset, recipes in PRESETS.items():
        for dataset in recipes:
            name = DATASET if dataset == ANY else dataset
            place = Place(name, preset, recipe_of(preset, name), tmp_path, tmp_path)
            for system in SYSTEMS:
                place.settings(system, 1)
                count += 1
    assert count == 9 * len(SYSTEMS)
    used = {name for table in TABLES.values() for name in ancestors(table.systems)}
    assert used == {*SYSTEMS}


def test_published_results_are_those_of_the_recipes() -> None:
    """Also where a setting has come since, which then had its default."""
    published = Path(__file__).parents[2] / "docs/results/translation"
    paths = list(published.glob("*/small/results/*/result.json"))
    assert len(paths) >= 75
    for path in paths:
        result = json.loads(path.read_text())
        recipe = recipe_of("small", result["dataset"])
        place = Place(result["dataset"], "small", recipe, published, published)
        assert place.result(result["system"], result["seed"]) == path
        assert place.differences(result["system"], result["seed"]) == []


def test_datasets_of_tables() -> None:
    assert datasets_of(["divergent"], []) == {"divergent": ["tatoeba-ja-en"]}
    assert datasets_of(["divergent"], [DATASET]) == {"divergent": [DATASET]}
    both = [DATASET, "tatoeba-ja-en"]
    assert datasets_of(list(TABLES), both)["divergent"] == ["tatoeba-ja-en"]
    assert datasets_of(list(TABLES), both)["main"] == both
    assert "divergent" not in datasets_of(list(TABLES), [DATASET])


def test_help_names_everything() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for name, table in TABLES.items():
        assert re.search(rf"│ {name} +{re.escape(table.paper)}", shown), name
    assert re.search(r"│ all ", shown)
    shown = CliRunner().invoke(app, ["main", "--help"], env={"COLUMNS": "200"}).stdout
    for option in ("--data", "--folder", "--out", "--preset", "--seeds", "--jobs"):
        assert option in shown
