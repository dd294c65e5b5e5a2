"""Recorded training steps on a CUDA device: ``pytest -m gpu``; test_recordings.py emulates them.

Loss curves are chaotic: two runs without graphs can end as far apart as one with and one without.
So losses, statistics and gradients are compared batch by batch, from the same weights and seed.
"""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from oaxe.model.statistics import Statistics
from oaxe.support.errors import UserError
from oaxe.systems import Example, Progress, cmlm
from oaxe.text.plans import BANDS, Room
from oaxe.training.ranks import Ranks
from oaxe.training.run import assemble, gather
from oaxe.training.trainer import Trainer
from tests.gpu import GPU
from tests.runs import ANNEALED, make_data, settings_of

pytestmark = GPU

DEVICE = torch.device("cuda")
OAXE = {"cmlm__loss": {"name": "oaxe", "truncation": 0.05}}
AXE = {"cmlm__loss": "axe"}
NGRAMS = {"cmlm__loss": "bag_of_ngrams"}
GLAT = {"model__system": "glat"}
CRF = {"model__system": "crf"}
CTC = {"model__system": "ctc"}
CTC_GLAT = {"model__system": "ctc_glat"}
DAG = {"model__system": "dag"}
DDRS = {"model__system": "ddrs"}
FLOWSEQ = {"model__system": "flowseq"}
LANMT = {"model__system": "lanmt"}
IMPUTER = {"model__system": "imputer"}
DSLP = {"model__system": "dslp"}
NGRAM_OAXE = {"cmlm__loss": {"name": "ngram_oaxe", "truncation": 0.05}}
CTC_NGRAMS = CTC_GLAT | {"ctc_glat__objective": "ngrams", "ctc_glat__weak_decoder": 0.5}
COCO = CTC | {"ctc__objective": "coco", "ctc__consistency": 0.5}
DAG_NGRAMS = DAG | {"dag__objective": "ngrams", "dag__weak_decoder": 0.5}
TRANSFORMER = {"model__system": "transformer"}
LANGUAGE_MODEL = {"model__system": "language_model"}
NEVER = 10**9
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}  # relative; 1.2e-6 was measured in float32
EPOCHS = 20.0  # of an annealed training
END = torch.tensor(EPOCHS, dtype=torch.float64)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough sentences for batches that are large enough for the kernels."""
    return make_data(tmp_path_factory.mktemp("digits"), pairs=3_000)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[torch.cuda.CUDAGraph]:
    """The graph of every replay."""
    done: list[torch.cuda.CUDAGraph] = []
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        done.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    return done


def trainer_of(data: Path, run: Path, **changes: Any) -> Trainer:
    settings = settings_of(
        data, run, data__update_tokens=4_000, data__batch_tokens=4_000, train__log_every=NEVER,
        train__save_every=NEVER, train__steps=NEVER, validation__every=NEVER, **changes,
    )  # fmt: skip
    run.mkdir()
    ranks = Ranks(0, 1, DEVICE)
    trainer, _ = assemble(settings, gather(settings, ranks), ranks, Console(quiet=True))
    trainer.system.train()
    return trainer


def examples(trainer: Trainer) -> Iterator[tuple[Example, Room | None]]:
    """Batches without end; every epoch has the same shapes."""
    with trainer.loader() as loader:
        for update in loader:
            for batch in update.batches:
                yield trainer.update.example(batch), trainer.update.room(batch)


def differentiate(
    trainer: Trainer, given: tuple[Example, Room | None], progress: Progress, seed: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Loss, statistics and the gradient by each parameter; ``seed`` is that of dropout."""
    torch.manual_seed(seed)
    example, room = given
    scale = 1 / example.n_words
    loss, statistics = trainer.update.differentiate(example, progress, scale, room=room)
    gradients = [p.grad.clone() for p in trainer.system.parameters() if p.grad is not None]
    return loss.clone(), statistics.clone(), gradients


def assert_same_step(recorded: Trainer, plain: Trainer, *given: Any, tolerance: float) -> Tensor:
    """Returns the statistics of the recorded one."""
    loss, statistics, gradients = differentiate(recorded, *given)
    expected_loss, expected_statistics, expected = differentiate(plain, *given)
    torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=0)
    # Among them are numbers of words, of which a rounding may change one.
    torch.testing.assert_close(statistics, expected_statistics, rtol=tolerance, atol=2.0)
    whole = torch.cat([gradient.flatten() for gradient in expected]).norm()
    assert whole > 0
    assert len(gradients) == len(expected) > 20
    for ours, theirs in zip(gradients, expected, strict=True):
        # Some gradients, as those of the biases of keys, are zero but for roundings.
        assert (ours - theirs).norm() <= tolerance * (theirs.norm() + 0.1 * whole)
    return statistics


def move_on(recorded: Trainer, plain: Trainer) -> None:
    """Learn from the gradients of the recorded step, and have the same weights in both."""
    recorded.update.optimizer.step()
    with torch.no_grad():
        for ours, theirs in zip(
            recorded.system.parameters(), plain.system.parameters(), strict=True
        ):
            theirs.copy_(ours)


def both(data: Path, folder: Path, **changes: Any) -> tuple[Trainer, Trainer]:
    recorded = trainer_of(data, folder / "recorded", **changes)
    plain = trainer_of(data, folder / "plain", train__cuda_graphs=False, **changes)
    assert recorded.update.recordings is not None
    assert plain.update.recordings is None
    return recorded, plain


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name)
        for name, changes in {
            "xe": {},
            "axe": AXE,
            "oaxe": OAXE,
            "ngram oaxe": NGRAM_OAXE,
            "bag of n-grams": NGRAMS,
            "glat": GLAT,
            "crf": CRF,
            "ctc": CTC,
            "coco": COCO,
            "ctc_glat": CTC_GLAT,
            "ctc_glat ngrams": CTC_NGRAMS,
            "dslp": DSLP,
            "imputer": IMPUTER,
            "ddrs": DDRS,
            "lanmt": LANMT,
            "flowseq": FLOWSEQ,
            "dag": DAG,
            "dag ngrams": DAG_NGRAMS,
            "transformer": TRANSFORMER,
            "language model": LANGUAGE_MODEL,
        }.items()
    ],
)
def test_replayed_steps_equal_plain_ones(
    changes: dict[str, Any],
    precision: str,
    norm: str,
    digits: Path,
    tmp_path: Path,
    replays: list[torch.cuda.CUDAGraph],
) -> None:
    """With dropout and random masks; weights change from batch to batch."""
    recorded, plain = both(
        digits, tmp_path, train__precision=precision, model__norm=norm, **changes
    )
    assert recorded.update.recordings is not None
    for number, example in enumerate(islice(examples(recorded), 30)):
        epoch = torch.tensor(number / 10, dtype=torch.float64, device=DEVICE)
        progress = Progress(epoch, END.to(DEVICE), recorded.system.phase(number / 10, EPOCHS))
        assert_same_step(recorded, plain, example, progress, number, tolerance=TOLERANCE[precision])
        move_on(recorded, plain)
    assert not recorded.update.recordings.failed
    assert len(replays) > 2 * len(set(map(id, replays))) > 0
    if recorded.packed:  # all batches are alike, or those of a band of lengths
        bands = BANDS if recorded.system.in_bands else 1
        assert len(set(map(id, replays))) <= 2 * bands


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_annealing_follows_the_epoch(
    precision: str, digits: Path, tmp_path: Path, replays: list[torch.cuda.CUDAGraph]
) -> None:
    """Each phase is recorded; the weight of XE is another at every replay."""
    recorded, plain = both(digits, tmp_path, train__precision=precision, **ANNEALED)
    options = recorded.system.options
    c, lam = options.annealing_c, options.annealing_lambda
    assert recorded.update.recordings is not None
    replayed = {"xe": 0, "both": 0, "loss": 0}
    for number, example in enumerate(islice(examples(recorded), 72)):
        phase, t = ("xe", "both", "loss")[number % 3], 0.1 + 0.8 * (0.37 * number % 1)
        changing = lam * EPOCHS + math.log(1 - t) / math.log(c)  # where the weight of XE is t
        value = {"xe": 0.0, "both": changing, "loss": EPOCHS}[phase]
        assert recorded.system.phase(value, EPOCHS) == phase
        epoch = torch.tensor(value, dtype=torch.float64, device=DEVICE)
        before = len(replays)
        statistics = assert_same_step(
            recorded,
            plain,
            example,
            Progress(epoch, END.to(DEVICE), phase),
            number,
            tolerance=TOLERANCE[precision],
        )
        replayed[phase] += len(replays) > before
        if phase == "both":
            index = 2 * recorded.update.statistics.names[phase].index("xe_weight")
            weight, batches = statistics[index : index + 2].tolist()
            assert (weight, batches) == (pytest.approx(t, abs=1e-5), 1)
        move_on(recorded, plain)
    assert not recorded.update.recordings.failed
    assert min(replayed.values()) > 5


def updates(trainer: Trainer, number: int) -> list[float]:
    """Do some; returns the loss of a word in each."""
    with trainer.loader() as loader:
        for update in islice(loader, number):
            trainer.one_update(update)
    return [float(total) / 4_000 for _, _, total in trainer._unchecked]


def test_a_loss_that_is_not_finite_still_stops_the_run(
    digits: Path, tmp_path: Path, replays: list[torch.cuda.CUDAGraph]
) -> None:
    trainer = trainer_of(digits, tmp_path / "run", **OAXE)
    updates(trainer, 20)
    before = len(replays)
    assert before > 3
    with torch.no_grad():
        trainer.system.transformer.tokens.weight[9] = float("nan")
    with trainer.loader() as loader:
        trainer.step(next(loader))  # a graph does not look at its costs
    assert len(replays) > before
    with pytest.raises(UserError, match="nan"):
        trainer._check_finite(weights=False)


def test_goes_on_where_a_recording_fails(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the device cannot be recorded; random numbers must be left as they were."""
    forward = cmlm.Model.forward

    def waits(self: cmlm.Model, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        loss, statistics = forward(self, example, progress)
        assert loss.item() > 0
        return loss, statistics

    monkeypatch.setattr(cmlm.Model, "forward", waits)
    trainer = trainer_of(digits, tmp_path / "run")
    losses = updates(trainer, 60)
    assert trainer.update.recordings is not None
    assert trainer.update.recordings.failed
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    assert torch.rand(1_000, device=DEVICE).std() > 0.2
