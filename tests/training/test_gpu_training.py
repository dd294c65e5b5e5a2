"""Recorded training steps on a CUDA device: ``pytest -m gpu``; others: test_recordings.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from oaxe.training.objective import Example, Objective
from rich.console import Console
from torch import Tensor

from oaxe.support.errors import UserError
from oaxe.training.ranks import Ranks
from oaxe.training.run import assemble, gather
from oaxe.training.trainer import Trainer
from tests.gpu import GPU
from tests.runs import make_data, settings_of

pytestmark = GPU


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("digits"), pairs=4_000)


def learning_curve(data: Path, run: Path, **changes: Any) -> tuple[list[float], Trainer]:
    """The losses of 150 updates, each of one or two batches, and who has made them."""
    settings = settings_of(
        data, run, data__update_tokens=6_000, data__batch_tokens=4_000, train__log_every=10**9,
        train__save_every=10**9, train__steps=10**9, validation__every=10**9, **changes,
    )  # fmt: skip
    run.mkdir()
    ranks = Ranks(0, 1, torch.device("cuda"))
    trainer, _ = assemble(settings, gather(settings, ranks), ranks, Console(quiet=True))
    with trainer.loader() as loader:
        for _ in range(150):
            trainer.one_update(next(loader))
        losses = [float(total) / 6_000 for _, _, total in trainer._unchecked]
    return losses, trainer


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss__name": "oaxe", "loss__truncation": 0.05},
        {"loss__name": "axe"},
        {"model__kind": "at", "optim__clip": 1.0, "model__norm": "pre"},
        {"model__kind": "lm"},
    ],
)
def test_learns_as_without(
    changes: dict[str, Any], precision: str, data: Path, tmp_path: Path
) -> None:
    """The same masks and dropout, so that losses differ only by what roundings grow to."""
    plain, trainer = learning_curve(
        data, tmp_path / "a", train__precision=precision, train__cuda_graphs=False, **changes
    )
    assert trainer.recordings is None
    found, trainer = learning_curve(data, tmp_path / "b", train__precision=precision, **changes)
    assert trainer.recordings is not None
    assert not trainer.recordings.failed
    assert len(trainer.recordings._graphs) > 5
    later = [sum(losses[-50:]) / 50 for losses in (plain, found)]
    assert later[0] < 0.9 * plain[0]  # it learns
    assert found[:20] == pytest.approx(plain[:20], rel=0.01)
    assert later[1] == pytest.approx(later[0], rel=0.1)


def test_a_loss_that_is_not_finite_still_stops_the_run(data: Path, tmp_path: Path) -> None:
    _, trainer = learning_curve(data, tmp_path / "run", loss__name="oaxe")
    with torch.no_grad():
        trainer.model.tokens.weight[9] = float("nan")
    with trainer.loader() as loader:
        trainer.step(next(loader))  # a graph does not look at its costs
    with pytest.raises(UserError, match="nan"):
        trainer._check_finite(weights=False)


def test_goes_on_where_a_recording_fails(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the device cannot be recorded; random numbers must be left as they were."""
    forward = Objective.forward

    def waits(self: Objective, example: Example, xe_weight: float) -> tuple[Tensor, Tensor]:
        loss, stats = forward(self, example, xe_weight)
        assert loss.item() > 0
        return loss, stats

    monkeypatch.setattr(Objective, "forward", waits)
    found, trainer = learning_curve(data, tmp_path / "run")
    assert trainer.recordings is not None
    assert trainer.recordings.failed
    assert found[-1] < 0.9 * found[0]
    assert torch.rand(1_000, device="cuda").std() > 0.2
