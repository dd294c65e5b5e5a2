"""Strict configuration: everything wrong is said at once, with the nearest valid name."""

from pathlib import Path

import pytest
import yaml

from oaxe.support.config import build, documented, flatten, load, to_mapping
from oaxe.support.errors import UserError
from oaxe.training.settings import Settings

MINIMAL = {"run": "r", "data": {"folder": "d"}, "train": {"steps": 1}}


def test_a_resolved_configuration_reads_back() -> None:
    settings = build(Settings, MINIMAL)
    assert build(Settings, yaml.safe_load(yaml.safe_dump(to_mapping(settings)))) == settings


def test_documentation_is_a_configuration() -> None:
    text = documented(Settings)
    assert text.count("???") == 2  # run and data.folder
    content = yaml.safe_load(text.replace("???", "x"))
    content["train"]["steps"] = 1
    defaults = build(Settings, {**MINIMAL, "run": "x", "data": {"folder": "x"}})
    assert build(Settings, content) == defaults
    assert set(flatten(content)) == set(flatten(to_mapping(defaults)))


def test_all_problems_at_once() -> None:
    content = {
        "data": {"folder": "d", "batch_tokens": "many"},
        "loss": {"lable_smoothing": 0.1, "name": "oax"},
        "optim": {"betas": [0.9], "lr": "fast"},
        "train": {"steps": 1, "compile": 1},
        "modle": {},
    }
    with pytest.raises(UserError) as caught:
        build(Settings, content, where="a.yaml")
    message = str(caught.value)
    for expected in (
        "a.yaml: 8 problems",
        "run is missing",
        "data.batch_tokens must be whole number, got 'many'",
        "loss.lable_smoothing is not an option; did you mean loss.label_smoothing?",
        "loss.name must be one of xe, oaxe, axe, ctc, got 'oax'; did you mean oaxe?",
        "optim.betas must be [number, number], got [0.9]",
        "optim.lr must be number, got 'fast'",
        "train.compile must be true/false, got 1",
        "modle is not an option; did you mean model?",
    ):
        assert expected in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {}}, "nothing stops this run"),
        ({"model": {"kind": "at"}, "loss": {"name": "oaxe"}}, "does not go with model.kind at"),
        ({"loss": {"truncation": 0.1}}, "truncation belongs to oaxe"),
        ({"loss": {"name": "oaxe", "truncation": 1.0}}, "loss.truncation must be below 1"),
        ({"model": {"kind": "ctc"}, "loss": {"name": "ctc", "annealing": True}}, "annealing"),
        ({"optim": {"betas": [2, 2]}}, "optim.betas must be in"),
        ({"loss": {"annealing_c": 0.5}}, "annealing_c must be above 1"),
        ({"run": "???"}, "run is missing"),
        (
            {"loss": {"name": "oaxe", "annealing": True}, "train": {"minutes": 1.0}},
            "annealing needs train.epochs or",
        ),
        ({"optim": {"decay": "linear"}, "train": {"minutes": 1.0}}, "decay linear needs"),
        ({"train": {"steps": 1, "save_every": 0}}, "save_every must be at least 1"),
        ({"loss": None, "optim": 3}, "optim must be a section"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Settings, {**MINIMAL, **changes})


def test_values_that_cannot_be_are_reported_together() -> None:
    changes = {"loss": {"label_smoothing": 2}, "optim": {"lr": -1}, "model": {"dropout": 1.5}}
    with pytest.raises(UserError, match="3 problems"):
        build(Settings, {**MINIMAL, **changes})


def test_masking_follows_the_loss() -> None:
    masking = {
        name: build(Settings, {**MINIMAL, "loss": {"name": name}}).loss.masking
        for name in ("xe", "oaxe", "axe")
    }
    assert masking == {"xe": "partial-masks", "oaxe": "unobserved", "axe": "unobserved"}


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    settings = load(Settings, path, ["optim.lr=1e-4", "train.init_from=null", "run=elsewhere"])
    assert (settings.optim.lr, settings.train.init_from, settings.run) == (1e-4, None, "elsewhere")
    for bad, message in (("optim.lr", "section.key=value"), ("run.x=1", "run is a value")):
        with pytest.raises(UserError, match=message):
            load(Settings, path, [bad])


@pytest.mark.parametrize(
    ("content", "message"), [("[1, 2]", "not a list"), ("a: [", "not valid YAML"), ("", "missing")]
)
def test_files_that_are_no_configuration(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load(Settings, path)
    with pytest.raises(UserError, match="cannot read"):
        load(Settings, tmp_path / "none.yaml")
