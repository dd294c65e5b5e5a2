"""Choices between named alternatives, and sections that are only known at run time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from oaxe.support.config import (
    Choice,
    build,
    choice,
    class_of,
    documented,
    flatten,
    load,
    option,
    read,
    required,
    to_mapping,
)
from oaxe.support.errors import UserError


@dataclass(frozen=True)
class Xe:
    label_smoothing: float = option(0.1, "share of the probability for other tokens")


@dataclass(frozen=True)
class Oaxe:
    label_smoothing: float = option(0.1, "share of the probability for other tokens")
    truncation: float = option(0.0, "drop tokens with a probability up to this")

    def __post_init__(self) -> None:
        if self.truncation >= 1:
            raise UserError(f"truncation must be below 1, got {self.truncation}")


@dataclass(frozen=True)
class Ctc:
    pass


@dataclass(frozen=True)
class External:
    module: str = required("module of the loss")


LOSSES = {"xe": Xe, "oaxe": Oaxe, "ctc": Ctc, "external": External}


@dataclass(frozen=True)
class Settings:
    loss: Choice = choice(LOSSES, default="xe", help="what is minimised")
    steps: int = option(10, "updates")


@dataclass(frozen=True)
class Data:
    folder: str = required("prepared folder")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, Choice("xe", Xe())),
        ({"loss": None}, Choice("xe", Xe())),
        ({"loss": "oaxe"}, Choice("oaxe", Oaxe())),
        ({"loss": {"name": "oaxe", "truncation": 0.15}}, Choice("oaxe", Oaxe(truncation=0.15))),
        ({"loss": {"name": "oaxe"}}, Choice("oaxe", Oaxe())),
        ({"loss": {"label_smoothing": 0}}, Choice("xe", Xe(0.0))),
        ({"loss": "ctc"}, Choice("ctc", Ctc())),
        ({"loss": {"name": "external", "module": "m"}}, Choice("external", External("m"))),
    ],
)
def test_builds_the_chosen_options(content: dict[str, Any], expected: Choice) -> None:
    settings = build(Settings, content)
    assert settings.loss == expected
    assert type(settings.loss.options) is type(expected.options)
    assert build(Settings, yaml.safe_load(yaml.safe_dump(to_mapping(settings)))) == settings


def test_default_without_a_configuration() -> None:
    assert Settings() == build(Settings, {})
    assert hash(Settings()) == hash(build(Settings, {}))


def test_mapping_holds_the_name_and_the_options() -> None:
    mapping = to_mapping(build(Settings, {"loss": "oaxe"}))
    assert mapping == {
        "loss": {"name": "oaxe", "label_smoothing": 0.1, "truncation": 0.0},
        "steps": 10,
    }
    assert flatten(mapping)["loss.truncation"] == 0.0


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        (
            {"loss": "oax"},
            ["loss must be one of xe, oaxe, ctc, external, got 'oax'; did you mean oaxe?"],
        ),
        ({"loss": "hinge"}, ["loss must be one of xe, oaxe, ctc, external, got 'hinge'"]),
        ({"loss": 3}, ["loss must be one of xe, oaxe, ctc, external, got 3"]),
        ({"loss": ["xe"]}, ["loss must be one of xe, oaxe, ctc, external, got ['xe']"]),
        (
            {"loss": {"name": "oax", "truncatoin": 0.1}, "setps": 3},
            [
                "setps is not an option; did you mean steps?",
                "loss.name must be one of xe, oaxe, ctc, external, got 'oax'; did you mean oaxe?",
                "loss.truncatoin is not an option; did you mean loss.truncation?",
            ],
        ),
        ({"loss": {"name": ["xe"]}}, ["loss.name must be one of xe, oaxe, ctc, external, got"]),
        (
            {"loss": {"truncation": 0.1, "lable_smoothing": 0}},
            [
                "loss.truncation is an option of oaxe, not of xe",
                "loss.lable_smoothing is not an option; did you mean loss.label_smoothing?",
            ],
        ),
        (
            {"loss": {"name": "ctc", "label_smoothing": 0.1, "blank": 0}},
            [
                "loss.label_smoothing is an option of xe and oaxe, not of ctc",
                "loss.blank is not an option; there are none here",
            ],
        ),
        (
            {"loss": {"name": "oaxe", "truncation": "much"}, "steps": "many"},
            ["loss.truncation must be number, got 'much'", "steps must be whole number"],
        ),
        ({"loss": {"name": "oaxe", "truncation": 1}}, ["loss.truncation must be below 1, got 1.0"]),
        ({"loss": "external"}, ["loss.module is missing: module of the loss"]),
    ],
)
def test_reports_every_problem_of_a_choice(content: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        build(Settings, content, where="a.yaml")
    first, *rest = str(caught.value).split("\n")
    assert first == f"a.yaml: {len(problems)} problem" + "s" * (len(problems) > 1)
    for line, problem in zip(rest, problems, strict=True):
        assert line.startswith(f"  {problem}")


def test_rejects_an_option_called_name() -> None:
    @dataclass(frozen=True)
    class Named:
        name: str = option("x", "help")

    with pytest.raises(TypeError, match="cannot be called `name`"):
        choice({"named": Named}, default="named", help="help")


def test_documents_all_alternatives() -> None:
    text = documented(Settings)
    assert [line.split("  #")[0].rstrip() for line in text.splitlines()] == [
        "loss:",
        "  name: xe",
        "  label_smoothing: 0.1",
        "",  # with name: oaxe
        "",
        "",
        "",  # with name: ctc
        "",  # with name: external
        "",
        "steps: 10",
    ]
    for line in (
        "  name: xe                            # xe | oaxe | ctc | external: what is minimised",
        "  # with name: oaxe",
        "  # truncation: 0.0                   # number: drop tokens with a probability up to",
        "  # with name: ctc (no options)",
        "  # with name: external",
        "  # module: ???                       # text: module of the loss",
    ):
        assert f"\n{line}" in text
    assert build(Settings, yaml.safe_load(text)) == Settings()


def test_a_commented_alternative_can_be_uncommented() -> None:
    lines = [line for line in documented(Settings).splitlines() if "label_smoothing" not in line]
    text = (
        "\n".join(lines).replace("name: xe  ", "name: oaxe").replace("# truncation", "truncation")
    )
    assert build(Settings, yaml.safe_load(text)).loss == Choice("oaxe", Oaxe())


def test_overrides_of_a_choice(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("loss: oaxe\n")
    changed = load(Settings, path, ["loss.truncation=0.15"])
    assert changed.loss == Choice("oaxe", Oaxe(truncation=0.15))
    assert load(Settings, path, ["loss.name=xe"]).loss == Choice("xe", Xe())
    assert load(Settings, path, ["loss=ctc"]).loss == Choice("ctc", Ctc())
    path.write_text("loss:\n")
    assert load(Settings, path, ["loss.label_smoothing=0"]).loss == Choice("xe", Xe(0.0))
    with pytest.raises(UserError, match="loss is a value, not a section"):
        load(Settings, path, ["loss=3", "loss.truncation=1"])


SECTIONS = {
    "run": (str, required("folder for the results")),
    "loss": (Choice, choice(LOSSES, default="xe", help="what is minimised")),
    "data": Data,
    "oaxe": Oaxe,
}


def test_sections_known_at_run_time() -> None:
    content = {"run": "r", "data": {"folder": "d"}, "loss": "ctc"}
    assert vars(build(class_of(SECTIONS), content)) == {
        "run": "r",
        "loss": Choice("ctc", Ctc()),
        "data": Data("d"),
        "oaxe": Oaxe(),
    }


def test_sections_report_all_problems_together() -> None:
    content = {"dta": {}, "oaxe": {"truncation": 2}, "loss": "oax"}
    with pytest.raises(UserError) as caught:
        build(class_of(SECTIONS), content, where="a.yaml")
    assert str(caught.value).split("\n") == [
        "a.yaml: 5 problems",
        "  dta is not an option; did you mean data?",
        "  run is missing: folder for the results",
        "  loss must be one of xe, oaxe, ctc, external, got 'oax'; did you mean oaxe?",
        "  data.folder is missing: prepared folder",
        "  oaxe.truncation must be below 1, got 2.0",
    ]


def test_sections_may_be_plain_types() -> None:
    assert vars(build(class_of({"steps": int}), {"steps": 3})) == {"steps": 3}
    with pytest.raises(UserError, match="steps is missing: has no default"):
        build(class_of({"steps": int}), {})


def test_documented_sections_are_a_configuration() -> None:
    text = documented(class_of(SECTIONS))
    content = yaml.safe_load(text.replace("???", "x"))
    assert list(content) == list(SECTIONS)
    assert vars(build(class_of(SECTIONS), content)) == {
        "run": "x",
        "loss": Choice("xe", Xe()),
        "data": Data("x"),
        "oaxe": Oaxe(),
    }


def test_reads_content_before_it_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model:\n  system: ctc\n")
    content = read(path, ["model.size=tiny", "ctc.upsample=3"])
    assert content == {"model": {"system": "ctc", "size": "tiny"}, "ctc": {"upsample": 3}}
