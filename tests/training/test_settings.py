"""Settings of a run: the sections of all systems, and values that contradict each other."""

from typing import Any

import pytest
import yaml

from oaxe.criteria.oaxe import OaXE
from oaxe.support.config import Choice, flatten
from oaxe.support.errors import UserError
from oaxe.systems import built_in
from oaxe.training.settings import build_settings, documented_settings, settings_mapping

MINIMAL: dict[str, Any] = {"run": "r", "data": {"folder": "d"}, "train": {"steps": 1}}


@pytest.mark.parametrize("system", built_in())
def test_resolved_settings_read_back(system: str) -> None:
    settings = build_settings({**MINIMAL, "model": {"system": system}})
    text = yaml.safe_dump(settings_mapping(settings))
    assert build_settings(yaml.safe_load(text)) == settings


@pytest.mark.parametrize("system", built_in())
def test_documentation_is_a_configuration(system: str) -> None:
    text = documented_settings(system)
    assert text.count("???") == 2  # run and data.folder
    content = yaml.safe_load(text.replace("???", "x"))
    content["train"]["steps"] = 1
    changes = {"run": "x", "data": {"folder": "x"}, "model": {"system": system}}
    defaults = build_settings({**MINIMAL, **changes})
    assert build_settings(content) == defaults
    no_values = {"cmlm.inputs", "ctc", "decoding", "language_model", "train.init_from"}
    assert set(flatten(content)) ^ set(flatten(settings_mapping(defaults))) <= no_values


def test_reports_all_problems_at_once() -> None:
    content = {
        "data": {"folder": "d", "batch_tokens": "many"},
        "cmlm": {"lable_smoothing": 0.1, "loss": "oax"},
        "decoding": {"beam": 3},
        "optim": {"betas": [0.9], "lr": "fast"},
        "train": {"steps": 1, "compile": 1},
        "modle": {},
    }
    with pytest.raises(UserError) as caught:
        build_settings(content, "a.yaml")
    message = str(caught.value)
    for expected in (
        "a.yaml: 9 problems",
        "run is missing",
        "data.batch_tokens must be whole number, got 'many'",
        "cmlm.lable_smoothing is not an option; did you mean cmlm.label_smoothing?",
        "cmlm.loss must be one of xe, axe, oaxe, bag_of_ngrams, ngram_oaxe, got 'oax'; did you "
        "mean oaxe?",
        "decoding.beam is not an option; known: length_candidates, repeats",
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
        ({"model": {"system": "cmlmm"}}, "there is no system 'cmlmm'; did you mean cmlm"),
        ({"model": {"system": "transformer"}, "cmlm": {"loss": "oaxe"}}, "cmlm is not an option"),
        ({"cmlm": {"loss": {"truncation": 0.1}}}, "truncation is an option of oaxe and ngram_oaxe"),
        ({"cmlm": {"loss": {"name": "oaxe", "truncation": 1.0}}}, "cmlm.loss.truncation must be"),
        ({"model": {"system": "ctc"}, "ctc": {"annealing": True}}, "ctc.annealing is not an"),
        ({"model": {"system": "ctc"}, "ctc": {"upsample": 0}}, "ctc.upsample must be at least 1"),
        ({"model": {"system": "transformer", "positions": "both"}}, "model: "),
        ({"optim": {"betas": [2, 2]}}, "optim.betas must be below 1"),
        ({"cmlm": {"annealing_c": 0.5}}, "annealing_c must be above 1"),
        ({"cmlm": {"annealing": True}}, "choose another loss than xe"),
        ({"run": "???"}, "run is missing"),
        (
            {"cmlm": {"loss": "oaxe", "annealing": True}, "train": {"minutes": 1.0}},
            "needs train.epochs or",
        ),
        ({"optim": {"decay": "linear"}, "train": {"minutes": 1.0}}, "decay linear needs"),
        ({"train": {"steps": 1, "save_every": 0}}, "save_every must be at least 1"),
        ({"decoding": {"length_penalty": 11}}, "decoding.length_penalty must be at most 10"),
        ({"cmlm": None, "optim": 3}, "optim must be a section"),
    ],
)
def test_rejects_contradictions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_settings({**MINIMAL, **changes})


def test_values_out_of_bounds_are_reported_together() -> None:
    changes = {"cmlm": {"label_smoothing": 2}, "optim": {"lr": -1}, "model": {"dropout": 1.5}}
    with pytest.raises(UserError, match="3 problems"):
        build_settings({**MINIMAL, **changes})


def test_the_loss_is_a_choice() -> None:
    for loss in ("oaxe", {"name": "oaxe"}):
        options = build_settings({**MINIMAL, "cmlm": {"loss": loss}}).options
        assert options.loss == Choice("oaxe", OaXE(truncation=0.0))
