"""Runs without padding on a CPU, where it is not faster, but the same."""

from pathlib import Path
from typing import Any

import pytest

from oaxe.support.errors import UserError
from oaxe.systems import System, ctc
from tests.runs import OAXE, final_tensors, metrics, same, settings_of, train_on_ranks, train_small
from tests.training.test_ranks import EXACT, assert_close, assert_same_log

PACKED = {"data__packed": True}
DAG = {"model__system": "dag", "dag__end": 0.5, "validation__every": 12}


@pytest.mark.parametrize(
    "changes",
    [{}, OAXE, {"model__system": "transformer"}, {"model__system": "ctc"}, DAG],
    ids=["xe", "oaxe", "transformer", "ctc", "dag"],
)
def test_stopped_and_continued_to_the_same_weights(
    changes: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    """Validation between the updates reads sentences as they are."""
    for name, first in (("whole", 24), ("continued", 7)):
        how = {"train__steps": first, "validation__every": 4, **PACKED, **changes}
        train_small(settings_of(data, tmp_path / name, **how))
    how = {"train__steps": 24, "validation__every": 4, **PACKED, **changes}
    train_small(settings_of(data, tmp_path / "continued", **how))
    assert same(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "continued"))
    losses = [r["loss"] for r in metrics(tmp_path / "whole") if r["what"] == "train"]
    if changes is not OAXE:  # from random weights all words are truncated
        assert losses[-1] < losses[0]


def test_two_ranks_are_one(data: Path, tmp_path: Path) -> None:
    changes = {"train__steps": 6, "validation__every": 3, **EXACT, **PACKED}
    train_small(settings_of(data, tmp_path / "one", **changes))
    assert train_on_ranks(settings_of(data, tmp_path / "two", **changes)) == ["", ""]
    assert_close(final_tensors(tmp_path / "two"), final_tensors(tmp_path / "one"))
    assert_same_log(tmp_path / "one", tmp_path / "two")


def test_a_run_goes_on_with_layers_computed_again(data: Path, tmp_path: Path) -> None:
    for name, first in (("whole", 12), ("continued", 5)):
        train_small(settings_of(data, tmp_path / name, train__steps=first, **PACKED))
    how = {"train__steps": 12, "train__recompute": True}
    train_small(settings_of(data, tmp_path / "continued", **how))  # packed as it began
    assert same(final_tensors(tmp_path / "whole"), final_tensors(tmp_path / "continued"))


@pytest.mark.parametrize("why", ["system", "compile"])
def test_what_needs_padding_is_refused_before_a_folder_is_made(
    why: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "system":
        monkeypatch.setattr(ctc.Model, "room", System.room)
    changes = {"model__system": "ctc"} if why == "system" else {"train__compile": True}
    with pytest.raises(UserError, match=r"data\.packed"):
        train_small(settings_of(data, tmp_path / "run", **changes, **PACKED))
    assert not (tmp_path / "run").exists()
