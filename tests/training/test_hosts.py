"""Training on two machines, one of which is killed: both are started again from outside."""

import signal
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import oaxe.training.step
from oaxe.training import ranks
from oaxe.training.schedule import learning_rate
from oaxe.training.settings import Settings
from tests.hosts import hosts as hosts  # a fixture
from tests.hosts import killing_its_host, launch
from tests.runs import final_tensors, metrics, same, settings_of, train_on_ranks, train_small


@pytest.fixture(scope="module")
def never_killed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("reference") / "run"
    assert train_on_ranks(settings_of(data, run)) == ["", ""]
    return run


def work(settings: Settings, dies_at: int) -> None:
    """Train, with impatience for files of the other; the host dies in its n-th update, or never."""
    rate = killing_its_host(learning_rate, dies_at)
    with (
        mock.patch.object(oaxe.training.step, "learning_rate", rate),
        mock.patch.object(ranks, "SECONDS_UNTIL_SEEN", 0.1),
    ):
        train_small(settings)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_host(
    killed: int, hosts: list[str], data: Path, never_killed: Path, tmp_path: Path
) -> None:
    """Weights, Adam's state and log are those of the run that was never killed, bit for bit."""
    settings = settings_of(data, tmp_path / "run")
    works = [partial(work, settings, 14 if node == killed else 0) for node in range(2)]
    codes = launch(hosts, works, tmp_path)
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == 1  # it does not hang
    message = (tmp_path / hosts[1 - killed]).read_text()
    assert f"rank {1 - killed} on " in message
    assert "has lost another rank" in message
    left = [path.name for path in (tmp_path / "run/checkpoints").iterdir()]
    assert sorted(left)[-1] == "step-00000012"
    assert not (tmp_path / "run/result.json").exists()

    assert launch(hosts, [partial(work, settings, 0)] * 2, tmp_path) == [0, 0]
    assert same(final_tensors(tmp_path / "run"), final_tensors(never_killed))
    assert metrics(tmp_path / "run") == metrics(never_killed)
    weights = Path("model/model.safetensors")
    assert (tmp_path / "run" / weights).read_bytes() == (never_killed / weights).read_bytes()


def test_hosts_that_do_not_fit(hosts: list[str], data: Path, tmp_path: Path) -> None:
    """Both say so, at once: not the second one, at the end."""
    one, other = (
        settings_of(data, tmp_path / "run", optim__lr=lr, train__steps=4) for lr in (1e-3, 1e-4)
    )
    assert launch(hosts, [partial(work, s, 0) for s in (one, other)], tmp_path) == [1, 1]
    texts = [(tmp_path / host).read_text() for host in hosts]
    assert texts[0] == texts[1]
    assert "differs from the first rank" in texts[0]
    assert "optim.lr: 0.001 there, 0.0001 here" in texts[0]
    assert not (tmp_path / "run").exists()

    other = settings_of(data, tmp_path / "elsewhere", optim__lr=1e-3, train__steps=4)
    assert launch(hosts, [partial(work, s, 0) for s in (one, other)], tmp_path) == [1, 1]
    texts = [(tmp_path / host).read_text() for host in hosts]
    assert texts[0] == texts[1]
    assert f"does not find {tmp_path / 'elsewhere'}/environment.json as the first" in texts[0]
    assert f"{tmp_path / 'elsewhere'} must be the same on all machines" in texts[0]
