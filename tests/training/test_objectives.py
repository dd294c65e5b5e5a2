"""Whole runs with what only training has: resumed, finished without it, and the start of others."""

from pathlib import Path
from unittest import mock

from safetensors.torch import load_file

from oaxe.model.transformer import SIZES
from oaxe.training.run import load_translator
from tests.runs import SMALL, final_tensors, metrics, same, settings_of, train_small

LIKELIHOOD = {
    "model__system": "ctc_glat",
    "ctc_glat__start": 0.3,
    "ctc_glat__weak_decoder": 0.5,
    "ctc_glat__consistency": 0.1,
    "data__packed": True,
}
NGRAMS = LIKELIHOOD | {"ctc_glat__objective": "ngrams"}


def test_stopped_resumed_and_fine_tuned(data: Path, tmp_path: Path) -> None:
    whole, resumed, tuned = (tmp_path / name for name in ("whole", "resumed", "tuned"))
    train_small(settings_of(data, whole, train__steps=8, **LIKELIHOOD))
    for steps in (4, 8):
        _, printed = train_small(settings_of(data, resumed, train__steps=steps, **LIKELIHOOD))
    assert "resumed from" in printed
    assert same(final_tensors(resumed), final_tensors(whole))
    assert any(name.startswith("model.weak.") for name in final_tensors(whole))
    finished = load_file(whole / "model/model.safetensors")
    assert not any(name.startswith("weak.") for name in finished)
    best = sorted((whole / "best").glob("step-*"))[-1]
    with mock.patch.dict(SIZES, tiny=SMALL):
        for model in (whole, best):
            assert len(load_translator(str(model), "cpu").translate(["1 2", "3"])) == 2
    start = {"train__steps": 3, "train__log_every": 1, "train__init_from": str(whole)}
    _, printed = train_small(settings_of(data, tuned, **NGRAMS, **start))
    assert "new: weak.*" in printed
    assert "warning" not in printed
    losses = [record["loss"] for record in metrics(tuned) if record["what"] == "train"]
    assert all(0 < loss <= 1 for loss in losses)
