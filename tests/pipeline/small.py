"""A build of seconds: a tiny model, and so few updates because each is said to take long."""

from typing import Any

import pytest

from oaxe.model.transformer import SIZES
from oaxe.pipeline import plan as planning
from oaxe.pipeline import recipes, report, stages
from oaxe.pipeline.recipes import Rates
from oaxe.systems import ctc, dag
from tests.runs import SMALL


def make_small(patch: pytest.MonkeyPatch) -> None:
    """For ``oaxe build --minutes 1`` on a CPU, or a little less."""

    def seconds(content: Any, vocab_size: int, lengths: Any, device: str) -> float:
        return 0.24 if content["model"]["system"] == "transformer" else 1.0

    patch.setattr(stages, "SLOWER", float("inf"))  # however busy this machine is
    patch.setattr(planning, "LEAST_UPDATES", 15)
    patch.setattr(planning, "LEAST_BIGRAMS", 2)
    patch.setattr(recipes, "VALIDATIONS", 2)
    patch.setattr(report, "BATCH", 2)
    patch.setattr(ctc, "BONUSES", (0.0, 1.0))
    patch.setattr(dag, "LENGTH_PENALTIES", (0.5, 1.0))
    for system in (ctc, dag):
        patch.setattr(system, "WEIGHTS", (0.0, 0.3))
    for rates in (recipes.TEACHERS, recipes.STUDENTS):
        patch.setitem(rates, (False, False), Rates(256, 3e-3, 10, 0.9))
    patch.setattr(stages, "make_plan", lambda asked: planning.make_plan(asked, seconds))
    patch.setitem(SIZES, "tiny", SMALL)
