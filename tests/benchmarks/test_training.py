"""The benchmark of training counts what it says, and compares the same model on the same data."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import side_by_side, training
from benchmarks.__main__ import app
from benchmarks.arithmetic import flop_of, flop_of_a_token
from benchmarks.experiment import Experiment
from benchmarks.harness import Report
from benchmarks.inputs import corpus_like_news
from benchmarks.loops import Plain, Turn, Whole, run_for
from benchmarks.page import BEGIN, END, draw, filled_in, tables
from benchmarks.plain_graph import PlainDAG, glanced
from benchmarks.teacher import Numbers, distil
from oaxe.model.transformer import SIZES, Size
from oaxe.support.errors import UserError
from oaxe.systems import Progress, dag
from oaxe.text.batches import collate
from oaxe.text.plans import Limits, plan_epoch
from oaxe.text.symbols import LENGTH, PAD
from tests.cli import printed
from tests.runs import FORKS, SMALL, make_data

run = partial(printed, app)
CPU = torch.device("cpu")
TWO_AND_THREE = Size(dim=16, ffn=40, heads=2, encoder_layers=2, decoder_layers=3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(SIZES, "tiny", SMALL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def experiment_of(system: str = "cmlm", **changes: Any) -> Experiment:
    given: dict[str, Any] = {
        "system": system, "loss": "xe" if system == "cmlm" else None, "data": None, "vocab": 100,
        "corpus_tokens": 600, "batch_tokens": 300, "device": "cpu", "seed": 1,
    }  # fmt: skip
    return Experiment(**given | changes)


@pytest.mark.parametrize("system", ["cmlm", "transformer"])
def test_operations_are_those_that_pytorch_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """The padded batch is counted as its sentences are, computed one by one."""
    monkeypatch.setitem(SIZES, "tiny", TWO_AND_THREE)
    changes = ["cmlm.inputs=unobserved"] * (system == "cmlm")
    experiment = experiment_of(system, changes=changes)
    settings = experiment.settings("tiny", 300, str(tmp_path))
    model = experiment.new_system(settings)
    plain = Plain(settings, model, experiment.corpus, experiment.ranks)
    plain.close()
    chosen, expected = np.arange(5), 0.0
    for i in chosen:
        alone = collate(experiment.corpus, np.array([i]))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            plain.loss(model.example(alone.source, alone.target)).backward()  # type: ignore[no-untyped-call]
        expected += counter.get_total_flops()
        if system == "transformer":  # PyTorch counts pairs that are masked, too; BOS is a position
            n = alone.n_target_tokens + 1
            expected -= 3 * 4 * 16 * 3 * (n**2 - n * (n + 1) / 2)
    batch = collate(experiment.corpus, chosen)
    assert len({len(row[row != PAD]) for row in batch.source}) > 2
    assert flop_of(model, model.example(batch.source, batch.target)) == expected


def test_the_output_layer_counts_words_that_have_a_loss(tmp_path: Path) -> None:
    experiment = experiment_of()
    model = experiment.new_system(experiment.settings("tiny", 300, str(tmp_path)))
    batch = collate(experiment.corpus, np.arange(5))
    example = model.example(batch.source, batch.target)
    less = example._replace(target=torch.full_like(example.target, -100))
    difference = flop_of(model, example) - flop_of(model, less)
    assert difference == 3 * 2 * int(example.n_words) * 100 * SMALL["dim"]


def test_operations_of_a_token_are_the_mean_of_the_corpus(tmp_path: Path) -> None:
    experiment = experiment_of("transformer")
    settings = experiment.settings("tiny", 300, str(tmp_path))
    model, corpus = experiment.new_system(settings), experiment.corpus
    batch = collate(corpus, np.arange(len(corpus)))
    flop = flop_of(model, model.example(batch.source, batch.target))
    expected = flop / corpus.target_lengths.sum()
    assert flop_of_a_token(model, corpus) == pytest.approx(expected)
    glat = experiment_of("glat")
    assert flop_of_a_token(glat.new_system(glat.settings("tiny", 300, "")), corpus) is None


@pytest.mark.parametrize("system", ["cmlm", "transformer", "language_model"])
def test_the_plain_loop_trains_the_same_model(tmp_path: Path, system: str) -> None:
    experiment = experiment_of(system, changes=["model.dropout=0"])
    settings = experiment.settings("tiny", 300, str(tmp_path))
    model = experiment.new_system(settings)
    plain = Plain(settings, model, experiment.corpus, experiment.ranks)
    batch = collate(experiment.corpus, np.arange(7))
    example = model.example(batch.source, batch.target)
    zero = torch.zeros((), dtype=torch.float64)
    ours, _ = model(example, Progress(zero, zero + 1, model.phase(0.0, 1.0)))
    theirs = plain.loss(example)
    torch.testing.assert_close(theirs, ours)
    of_ours = torch.autograd.grad(ours, list(model.parameters()))
    of_theirs = torch.autograd.grad(theirs, list(plain.system.parameters()))
    torch.testing.assert_close(of_theirs, of_ours, rtol=1e-4, atol=1e-4)
    before = [weight.clone() for weight in plain.system.parameters()]
    lengths = experiment.corpus.source_lengths, experiment.corpus.target_lengths
    plan = plan_epoch(*lengths, Limits(max_tokens=300, update_tokens=300, seed=1, epoch=0))
    assert plain.one_update() == lengths[1][np.concatenate(plan[0])].sum()
    assert any(not a.equal(b) for a, b in zip(before, plain.system.parameters(), strict=True))
    plain.close()


def test_a_first_epoch_has_all_tokens(tmp_path: Path) -> None:
    experiment = experiment_of()
    settings = experiment.settings("tiny", 200, str(tmp_path))
    model = experiment.new_system(settings)
    whole = Whole(settings, model, experiment.corpus, experiment.ranks, Console(quiet=True))
    position = whole.trainer.position
    turn = run_for(whole, CPU, enough=lambda _: position.epoch > 0)
    whole.close()
    assert turn.tokens == experiment.corpus.target_lengths.sum()
    assert turn.updates == position.step == 3
    assert 0 < turn.waited < turn.seconds
    assert not whole.recorded


def test_a_turn_ends_in_time() -> None:
    class Counting:
        waited = 0.0
        done = 0

        def one_update(self) -> int:
            self.done += 1
            return 7

        def close(self) -> None: ...

    assert run_for(Counting(), CPU, seconds=0.0)[1:3] == (1, 7)
    assert run_for(Counting(), CPU, enough=lambda updates: updates >= 4)[1:3] == (4, 28)
    turn = run_for(Counting(), CPU, seconds=0.01)
    assert turn.seconds >= 0.01
    assert turn.tokens == 7 * turn.updates > 7


def test_padding_is_that_of_the_batches(tmp_path: Path) -> None:
    experiment, path = experiment_of(), tmp_path / "result.json"
    training.add_padding(Report(path), experiment, [200])
    found = json.loads(path.read_text())["padding"]["contenders"]["200 tokens an update"]
    corpus = experiment.corpus
    lengths = corpus.source_lengths, corpus.target_lengths
    plan = plan_epoch(*lengths, Limits(max_tokens=300, update_tokens=200, seed=1, epoch=0))
    batches = [collate(corpus, indices) for update in plan for indices in update]
    ids = torch.cat([side.flatten() for b in batches for side in (b.source, b.target)])
    assert found["padded plan"] == pytest.approx(float((ids == PAD).float().mean()))
    assert 0 <= found["packed plan"] < 1


def test_the_synthetic_corpus() -> None:
    corpus = corpus_like_news(np.random.default_rng(0), 20_000, 50)
    assert 20_000 <= corpus.target_lengths.sum() < 20_200
    for side in (corpus.sources, corpus.targets):
        assert 22 < side.lengths.mean() < 32
        assert side.lengths.min() >= 1
        assert LENGTH < side.tokens.min() <= side.tokens.max() < 50
    assert np.corrcoef(corpus.source_lengths, corpus.target_lengths)[0, 1] > 0.9


def test_a_teacher_translates_to_sources_length() -> None:
    assert Numbers(99).encode(Numbers(99).decode([[7, 12], []])) == [[7, 12], []]
    found = distil(experiment_of(corpus_tokens=2_000), "tiny", 30)
    assert found.n_sentences == 30
    assert found.target_length == pytest.approx(found.source_length, abs=2)
    assert len(found.later.seconds) == 2


def test_everything_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "get_context", lambda _: FORKS)
    path, document = tmp_path / "result.json", tmp_path / "page.md"
    data = make_data(tmp_path / "data")
    arguments = (
        "training --device cpu --size tiny --tokens 300 --tokens 600 --tokens 900 --without "
        "tiny:900 --batch-tokens 300 --seconds 0.03 --processes 2 --sentences 9 --data"
    )
    shown = run(*arguments.split(), str(data), "--json", str(path))
    result = json.loads(path.read_text())
    assert "left out" not in result
    for tokens in (300, 600):
        found = result[f"tiny, {tokens} tokens an update"]
        assert found["whole_first_epoch"]
        loops = found["contenders"]
        assert loops.keys() == {training.FIRST, training.LATER, training.PLAIN}
        assert loops[training.PLAIN][training.OF_PLAIN] == 1
        assert all(loop[training.RATE] > 0 for loop in loops.values())
        assert len(loops[training.LATER]["seconds"]) == training.ROUNDS
    assert "tiny, 900 tokens an update" not in result
    (together,) = result["tiny, 2 processes at a time"]["contenders"].values()
    assert together[training.RATE] > 0
    assert result["tiny, beam 5"]["sentences"] == 9
    assert "padded plan" in shown
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    run("page", str(path), str(document))
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    for row in ("| tiny | 300 |", "| 600 tokens an update |", "| tiny | 5 | 9 |"):
        assert row in text


def test_what_fails_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("so much\nwas not there")

    monkeypatch.setattr(Plain, "loss", fails)
    monkeypatch.setattr(training, "distil", fails)
    path = tmp_path / "result.json"
    arguments = "training --device cpu --size tiny --tokens 300 --vocab 100 --corpus-tokens 600"
    run(*arguments.split(), "--batch-tokens", "300", "--seconds", "0.01", "--json", str(path))
    result = json.loads(path.read_text())
    loops = result["tiny, 300 tokens an update"]["contenders"]
    assert loops.keys() == {training.FIRST, training.LATER}
    assert "x plain" not in loops[training.LATER]
    assert result["left out"].keys() >= {"tiny, 300, plain PyTorch loop", "tiny, beam 5"}
    assert "- Left out: tiny, beam 5: OutOfMemoryError: so much was not there" in tables(result)


def test_processes_say_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "get_context", lambda _: FORKS)
    with pytest.raises(RuntimeError, match=r"2 processes at a time: .*no system"):
        side_by_side.together(experiment_of("nowhere"), "tiny", 300, 2, 0.01)


def test_shares_of_the_floor_and_their_picture(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    about: dict[str, Any] = {"system": "cmlm", "loss": "xe", "changes": None, "vocab": 9}
    about |= {"data": "synthetic", "batch_tokens": 1, "seconds": 1.0, "device": "a GPU", "seed": 1}
    report = Report(path, **about, flop_per_second=7e14)
    turns = {
        training.FIRST: [Turn(2.0, 1, 500, 0.5)],
        training.LATER: [Turn(1.0, 2, 600, 0.1), Turn(3.0, 5, 1800, 0.1)],
        training.PLAIN: [Turn(2.0, 4, 200, 0.0)],
    }
    for size, tokens in (("small", 8192), ("small", 131_072), ("base", 8192)):
        training.add_turns(
            report, f"{size} {tokens}", turns, 1000.0, kind="training", size=size,
            update_tokens=tokens, seconds_to_start=1.0, updates_of_first_epoch=1,
            whole_first_epoch=False, share_waiting_for_data=0.05, recorded=True,
        )  # fmt: skip
    content = json.loads(path.read_text())
    loops = content["small 8192"]["contenders"]
    assert loops[training.LATER] == {
        "seconds": [0.5, 0.6], "target tokens/s": 600, "x plain": 6, "share of floor": 0.6
    }  # fmt: skip
    assert loops[training.FIRST]["share of floor"] == 0.25
    row = "| 1,000 | 100 | 10.0 % | **600** | **60.0 %** | 6.0 | 250 (1 updates) | 1.0 | 5.0 % |"
    assert f"| base | 8,192 {row}" in tables(content)
    draw(content, tmp_path / "training.png")
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


def test_problems_are_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--size must be one of"):
        run("training", "--size", "huge")
    with pytest.raises(UserError, match="that of a CMLM"):
        run("training", "--system", "ctc", "--loss", "oaxe", "--device", "cpu")
    with pytest.raises(UserError, match="no place for the tables"):
        filled_in("text", "tables", tmp_path)
    with pytest.raises(UserError, match="no floor"):
        draw({}, tmp_path / "p.png")


def test_a_plain_graph_has_our_loss_and_glances(tmp_path: Path) -> None:
    experiment = experiment_of("dag", changes=["dag.vertices=2", "dag.end=0.5"])
    settings = experiment.settings("tiny", 300, str(tmp_path))
    model = experiment.new_system(settings)
    plain = PlainDAG(settings, model, experiment.corpus, experiment.ranks)
    plain.close()
    order = np.argsort(experiment.corpus.target_lengths)
    batch = collate(experiment.corpus, order[:4])
    example = model.example(batch.source, batch.target)
    start = Progress(torch.tensor(0.0), torch.tensor(1.0))
    model.eval(), plain.system.eval()
    ours, theirs = model(example, start)[0], plain.loss(example)
    torch.testing.assert_close(theirs, ours)
    both = zip(
        torch.autograd.grad(ours, [*model.parameters()], allow_unused=True),
        torch.autograd.grad(theirs, [*plain.system.parameters()], allow_unused=True),
        strict=True,
    )
    for mine, its in both:
        torch.testing.assert_close(its, mine, rtol=1e-3, atol=1e-4)

    assert isinstance(model, dag.Model)
    encoded = model.transformer.encode(example.source)
    torch.manual_seed(1)
    expected, seen = model.glance(example, encoded, torch.tensor(0.5))
    torch.manual_seed(1)
    assert glanced(model, example, encoded).equal(expected)
    assert seen["revealed"][0] > 5


def test_dag_is_compared_with_a_cmlm_and_plain_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    arguments = (
        "dag --size tiny --tokens 150 --batch-tokens 300 --vocab 100 --corpus-tokens 600"
        " --vertices 2 --seconds 0 --device cpu --json"
    )
    run(*arguments.split(), str(path))
    result = json.loads(path.read_text())["DAG"]
    assert result["failed"] == {}
    found = result["contenders"]
    assert found.keys() == {"CMLM with XE", "DAG", "DAG, plain PyTorch"}
    assert found["CMLM with XE"]["x CMLM's time"] == found["DAG"]["x our time"] == 1
    assert found["DAG"]["x CMLM's time"] > 1
