"""Experiments, recipes, tables and the paper's numbers fit together."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reproduction.__main__ import app
from reproduction.equal_terms import SYSTEMS, trials
from reproduction.experiments import EXPERIMENTS, with_ancestors
from reproduction.folder import Folder
from reproduction.paper import PAPER
from reproduction.recipes import ANY, PRESETS, recipe_of
from reproduction.steps import Study
from reproduction.tables import TABLES
from reproduction.translation import datasets_of

DATASET = "tatoeba-en-de"


def test_every_number_of_the_paper_has_a_cell() -> None:
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
    assert count == 169


def test_settings_of_every_experiment_can_be_built(tmp_path: Path) -> None:
    """For every preset and data set."""
    count = 0
    for preset, recipes in PRESETS.items():
        for dataset in recipes:
            name = DATASET if dataset == ANY else dataset
            study = Study(Folder(tmp_path, name, preset), recipe_of(preset, name), tmp_path)
            for experiment in EXPERIMENTS:
                study.settings(experiment, 1)
                count += 1
    assert count == 10 * len(EXPERIMENTS)
    used = {name for table in TABLES.values() for name in with_ancestors(table.experiments)}
    assert used == {*EXPERIMENTS}


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


def test_systems_on_equal_terms_have_equal_budgets() -> None:
    """The same updates, tokens and start; fine-tuned ones together with what they start from."""
    for preset, recipes in PRESETS.items():
        for dataset, recipe in recipes.items():
            for name, system in SYSTEMS.items():
                assert len(system.trials) == 3
                for trial in trials(name) + (trials(name, raw=True) if system.has_raw else ()):
                    one, total = EXPERIMENTS[trial], 0
                    assert one.tokens == 1
                    while True:
                        total += recipe.stage(one).steps
                        if one.start == "student":
                            break
                        one = EXPERIMENTS[str(one.start)]
                    told = preset, dataset, trial
                    assert total == pytest.approx(recipe.equal.steps, abs=1), told
