"""Strict configuration: all problems are reported at once, with the nearest valid name."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from oaxe.support.config import (
    build,
    documented,
    flatten,
    load,
    option,
    override,
    read,
    required,
    to_mapping,
)
from oaxe.support.errors import UserError


@dataclass(frozen=True)
class Data:
    folder: str = required("prepared folder")
    batch_tokens: int = option(100, "tokens of a batch", at_least=1)


@dataclass(frozen=True)
class Optim:
    lr: float = option(5e-4, "peak learning rate")
    betas: tuple[float, float] = option((0.9, 0.999), "Adam", below=1)
    decay: Literal["linear", "inverse-sqrt"] = option("linear", "what follows the peak")
    smoothing: float = option(0.1, "share", at_most=0.5)

    def __post_init__(self) -> None:
        if self.decay == "linear" and self.lr > 1:
            raise UserError("lr above 1 needs another decay\nlr above 1 is too much")


@dataclass(frozen=True)
class Settings:
    run: str = required("folder for the results")
    data: Data = required("what to train on")
    optim: Optim = required("how")
    start: str | None = option(None, "weights to start from")
    compiled: bool = option(False, "compile the model")


MINIMAL: dict[str, Any] = {"run": "r", "data": {"folder": "d"}}


def problems_of(content: dict[str, Any]) -> list[str]:
    with pytest.raises(UserError) as caught:
        build(Settings, content, where="a.yaml")
    first, *problems = str(caught.value).split("\n")
    assert first == f"a.yaml: {len(problems)} problem" + "s" * (len(problems) > 1)
    assert all(problem.startswith("  ") for problem in problems)
    return [problem.strip() for problem in problems]


def test_a_resolved_configuration_reads_back() -> None:
    settings = build(Settings, MINIMAL)
    assert build(Settings, yaml.safe_load(yaml.safe_dump(to_mapping(settings)))) == settings


def test_documentation_is_a_configuration() -> None:
    text = documented(Settings)
    assert text.count("???") == 2  # run and data.folder
    content = yaml.safe_load(text.replace("???", "x"))
    defaults = build(Settings, {"run": "x", "data": {"folder": "x"}})
    assert build(Settings, content) == defaults
    assert set(flatten(content)) == set(flatten(to_mapping(defaults)))


def test_documentation_shows_type_and_help() -> None:
    lines = documented(Settings).splitlines()
    assert "  batch_tokens: 100                   # whole number: tokens of a batch" in lines
    assert "start: null                           # text | null: weights to start from" in lines
    assert lines[7].endswith("# linear | inverse-sqrt: what follows the peak")


def test_reports_all_problems_at_once() -> None:
    content = {
        "data": {"folder": "d", "batch_tokens": "many"},
        "optim": {"betas": [0.9], "lr": "fast", "decya": 1, "decay": "linaer"},
        "compiled": 1,
        "optin": {},
    }
    assert problems_of(content) == [
        "optin is not an option; did you mean optim?",
        "run is missing: folder for the results",
        "data.batch_tokens must be whole number, got 'many'",
        "optim.decya is not an option; did you mean optim.decay?",
        "optim.lr must be number, got 'fast'",
        "optim.betas must be [number, number], got [0.9]",
        "optim.decay must be one of linear, inverse-sqrt, got 'linaer'; did you mean linear?",
        "compiled must be true/false, got 1",
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run": "???"}, "run is missing: folder for the results"),
        ({"run": {"a": 1}}, "run is a value, not a section; got {'a': 1}"),
        ({"optim": 3}, "optim must be a section of `key: value`, got 3"),
        ({"zzz": 3}, "zzz is not an option; known: run, data, optim, start, compiled"),
        ({"optim": {"lr": -1}}, "optim.lr must be at least 0, got -1.0"),
        ({"optim": {"lr": math.inf}}, "optim.lr must be at most 1,000,000,000, got inf"),
        ({"optim": {"lr": 16**999}}, "optim.lr must be at most 1,000,000,000, got inf"),
        (
            {"data": {"folder": "d", "batch_tokens": 16**9999}},
            "data.batch_tokens must be at most 1,000,000,000, got a number of over 300 digits",
        ),
        ({"optim": {"lr": math.nan}}, "optim.lr must be at least 0, got nan"),
        ({"optim": {"betas": [0.5, 1]}}, "optim.betas must be below 1, got [0.5, 1.0]"),
        ({"optim": {"smoothing": 0.6}}, "optim.smoothing must be at most 0.5, got 0.6"),
        ({"optim": {"lr": True}}, "optim.lr must be number, got True"),
        ({"data": {"folder": "d", "batch_tokens": 0}}, "data.batch_tokens must be at least 1, got"),
        ({"data": {"folder": "d", "batch_tokens": 1.0}}, "data.batch_tokens must be whole number"),
        ({"start": 3}, "start must be text, got 3"),
    ],
)
def test_rejects_a_wrong_value(changes: dict[str, Any], problem: str) -> None:
    (found,) = problems_of({**MINIMAL, **changes})
    assert found.startswith(problem)


def test_values_out_of_bounds_are_reported_together() -> None:
    changes = {"optim": {"lr": -1, "betas": [2, 2], "smoothing": 1}}
    assert len(problems_of({**MINIMAL, **changes})) == 3


def test_values_that_do_not_go_together() -> None:
    assert problems_of({**MINIMAL, "optim": {"lr": 2}}) == [
        "optim.lr above 1 needs another decay",
        "optim.lr above 1 is too much",
    ]


def test_an_empty_section_has_its_defaults() -> None:
    assert build(Settings, {**MINIMAL, "optim": None}) == build(Settings, MINIMAL)


def test_numbers_that_yaml_reads_as_text() -> None:
    assert build(Settings, {**MINIMAL, "optim": yaml.safe_load("lr: 1e-4")}).optim.lr == 1e-4


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    settings = load(Settings, path, ["optim.lr=1e-4", "start=null", "run=elsewhere"])
    assert (settings.optim.lr, settings.start, settings.run) == (1e-4, None, "elsewhere")
    for bad, message in (
        ("optim.lr", "--set wants KEY=VALUE, got 'optim.lr'"),
        ("=1", "--set wants KEY=VALUE, got '=1'"),
        ("run.x=1", "run is a value, not a section"),
        ("run=[", "is not a YAML value"),
    ):
        with pytest.raises(UserError, match=message):
            load(Settings, path, [bad])


def test_override_makes_missing_sections() -> None:
    content: dict[str, Any] = {"optim": None, "steps": 3}
    override(content, "optim.lr=1")
    override(content, "data.folder=d")
    assert content == {"optim": {"lr": 1}, "data": {"folder": "d"}, "steps": 3}
    with pytest.raises(UserError, match=r"--set steps.x=1: steps is a value, not a section"):
        override(content, "steps.x=1")


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1, 2]", r"got \[1, 2\]"), ("a: [", "not valid YAML"), ("", "missing")],
)
def test_rejects_files_that_are_no_configuration(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load(Settings, path)
    with pytest.raises(UserError, match="cannot read"):
        load(Settings, tmp_path / "none.yaml")


LEVELS = [f"l{n + 1}: &l{n + 1} [*l{n}, *l{n}, *l{n}, *l{n}]" for n in range(30)]
MERGES = [f"m{n + 1}: &m{n + 1} {{k{n}: 1, <<: [*m{n}, *m{n}, *m{n}]}}" for n in range(30)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("run: a\nrun: b", r"run is given twice; remove one of them(.|\n)*line 2"),
        ("optim: {lr: 1, lr: 2}", "lr is given twice"),
        ("a: " + "[" * 3000 + "]" * 3000, "not valid YAML: maximum recursion"),
        ("run: " + "9" * 5000, "not valid YAML: Exceeds the limit"),
        ("\n".join(["l0: &l0 [1]", *LEVELS, "run: *l30"]), r"run must be text, got \[\[\[\.\.\."),
        ("\n".join(["l0: &l0 [1]", *LEVELS, "optim: {decay: *l30}"]), "optim.decay must be one of"),
        ("\n".join(["m0: &m0 {a: 1}", *MERGES]), "more than 1,000 keys in one section"),
    ],
    ids=["twice", "twice inside", "deep", "digits", "anchors", "anchors for a choice", "merges"],
)
def test_rejects_what_would_mislead_or_hang(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load(Settings, path)


def test_merged_values_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}")
    assert read(path)["b"] == {"x": 1, "y": 3}


def test_lists_of_any_length() -> None:
    @dataclass(frozen=True)
    class Folders:
        names: tuple[str, ...] = option((), "any number of them")

    for names in ([], ["a"], ["a", "b"]):
        assert build(Folders, {"names": names}) == Folders(tuple(names))
        assert to_mapping(Folders(tuple(names))) == {"names": names}
    for wrong in ("a", ["a", 1]):
        with pytest.raises(UserError, match=r"names(\[1\])? must be (\[text, \.\.\.\]|text), got"):
            build(Folders, {"names": wrong})
