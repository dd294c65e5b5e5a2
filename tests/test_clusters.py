"""The recipes of docs/clusters.md: parsed by torchrun, and run with stand-ins for SLURM."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed.run
import yaml

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the recipes are shell scripts")
PAGE = (Path(__file__).parent.parent / "docs/clusters.md").read_text(encoding="utf-8")
STAND_INS = {
    "srun": 'while [ "$1" != bash ]; do shift; done; SLURM_NODEID=1 exec "$@"',
    "scontrol": 'echo "$@" >> scontrol.txt; if [ $1 = show ]; then printf "first\\nsecond\\n"; fi',
    "torchrun": 'echo "$@" > torchrun.txt; sleep "$SECONDS_OF_WORK"; exit "$CODE"',
}
EXPECTED = "--nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr {first} --master-port 29400 "
EXPECTED += "--max-restarts 0 -m oaxe train {config}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the script, and with all commands that it calls on the PATH."""
    (tmp_path / "bin").mkdir()
    for name, script in STAND_INS.items():
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/bash\n{script}\n")
        command.chmod(0o755)
    (script,) = (block for block in blocks("bash") if "SBATCH" in block)
    (tmp_path / "train.sbatch").write_text(script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    given = {"JOB_NODELIST": "n[1-2]", "JOB_ID": "7", "NNODES": "2", "CPUS_PER_TASK": "4"}
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    return tmp_path


def requeued(folder: Path) -> bool:
    return "requeue 7" in (folder / "scontrol.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("code", "starts", "again"), [(0, 0, False), (1, 0, True), (137, 19, True), (1, 20, False)]
)
def test_slurm_starts_again_after_a_failure(
    code: int, starts: int, again: bool, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", str(code))
    monkeypatch.setenv("SECONDS_OF_WORK", "0")
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(starts))
    subprocess.run(["bash", "train.sbatch"], cwd=slurm)
    assert requeued(slurm) == again
    said = (slurm / "torchrun.txt").read_text().strip()
    assert said == EXPECTED.format(first="first", config="config.yaml")


def test_slurm_starts_again_when_the_time_is_over(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", "0")
    monkeypatch.setenv("SECONDS_OF_WORK", "60")
    process = subprocess.Popen(["bash", "train.sbatch"], cwd=slurm, start_new_session=True)
    deadline = time.monotonic() + 20
    while not (slurm / "torchrun.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)  # to the script alone: B:USR1
    process.wait(20)
    assert requeued(slurm)
    os.killpg(process.pid, signal.SIGKILL)  # what SLURM does to the rest


def test_kubernetes() -> None:
    service, job = yaml.safe_load_all(blocks("yaml")[0])
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    (container,) = pod["containers"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert container["command"] == ["bash", "-c"]
    (line,) = container["args"]
    said = shlex.split(line.replace("$JOB_COMPLETION_INDEX", "1"))
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    expected = EXPECTED.format(first=first, config="/shared/config.yaml")
    assert " ".join(said) == f"exec torchrun {expected}"


def test_torchrun_takes_these_options() -> None:
    parser = torch.distributed.run.get_args_parser()
    given = parser.parse_args(shlex.split(EXPECTED.format(first="first", config="c.yaml")))
    assert (given.nnodes, given.node_rank, given.max_restarts) == ("2", 1, 0)
    assert (given.master_addr, given.master_port) == ("first", 29400)
    assert (given.module, given.training_script) == (True, "oaxe")
    assert given.training_script_args == ["train", "c.yaml"]


def test_every_script_is_bash() -> None:
    found = blocks("bash")
    assert len(found) == 2
    for script in found:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
