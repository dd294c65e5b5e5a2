"""Two machines in one: network namespaces with a cable between them, and torchrun's agent in each.

The agents and their ranks are forks of a process that has imported torch, which saves seconds; they
are what ``torchrun --nnodes 2 --node-rank N --master-addr ... --max-restarts 0`` starts.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from oaxe.support.errors import UserError
from tests.runs import FORKS

CABLE, FIRST, PORT = "cable", "10.213.0.1", 29400  # nobody else is in these namespaces
CLONE_NEWNET = 0x40000000
PATIENCE = 120  # seconds, for a machine that is busy with other things

Work = Callable[[], object]  # of a rank; can be pickled


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """Names of the namespaces; the test is skipped where there can be none."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux and the command ip (package iproute2)")
    names = [f"oaxe-{os.getpid()}-{node}" for node in range(2)]
    try:
        for host in names:
            _ip(f"netns add {host}")
        _ip(f"link add {CABLE} netns {names[0]} type veth peer {CABLE} netns {names[1]}")
        for host, address in zip(names, (FIRST, "10.213.0.2"), strict=True):
            _ip(f"-n {host} address add {address}/24 dev {CABLE}")
            for device in (CABLE, "lo"):
                _ip(f"-n {host} link set {device} up")
        yield names
    finally:
        for host in names:
            found = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True)
            for pid in map(int, found.stdout.split()):  # if a test has failed
                os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", host], capture_output=True)


def _ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"network namespaces cannot be made here, root can: {done.stderr.strip()}")


def launch(hosts: list[str], works: Sequence[Work], errors: Path) -> list[int]:
    """One rank on each host, until both have ended; returns the exit codes of the two agents.

    The UserError of a rank is in ``errors``, in a file that is called as its host.
    """
    agents = [
        FORKS.Process(target=_agent, args=(host, node, work, errors / host))
        for node, (host, work) in enumerate(zip(hosts, works, strict=True))
    ]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join(PATIENCE)
    assert all(agent.exitcode is not None for agent in agents)
    return [int(agent.exitcode or 0) for agent in agents]


def _agent(host: str, node: int, work: Work, error: Path) -> None:
    with open(f"/run/netns/{host}") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    config = LaunchConfig(
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=1,
        run_id="test",
        rdzv_backend="static",
        rdzv_endpoint=f"{FIRST}:{PORT}",
        rdzv_configs={"rank": node, "timeout": PATIENCE},
        max_restarts=0,
        start_method="fork",
    )
    try:
        elastic_launch(config, _rank)(work, error)
    except ChildFailedError:
        sys.exit(1)


def _rank(work: Work, error: Path) -> None:
    torch.set_num_threads(1)
    try:
        work()
    except UserError as problem:
        error.write_text(str(problem))
        raise


def killing_its_host(function: Callable[..., Any], call: int) -> Callable[..., Any]:
    """The function; in its n-th call, SIGKILL ends the rank and the agent of its host."""
    calls = 0

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return counting
