"""Tests with random input and kills at random moments, for longer; the C code under sanitizers.

`python -m tests.campaign --rounds 100` does each 100 times as often as `make test`, with other
numbers every time. Needs Linux and gcc.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
KILLS = (
    "tests/training/test_resume.py::test_20_kills_at_random_moments",
    "tests/distillation/test_distill.py::test_killed_at_random_moments",
    "tests/pipeline/test_build.py::test_a_build_that_is_killed_at_random_moments",
)
IN_C = (
    "tests/losses/test_assignment.py",
    "tests/search/test_ctc_beam_cpu.py",
    "tests/search/test_graph_beam_cpu.py",
    "tests/engine/test_output.py",
)
FLAGS = "-g -fsanitize=address,undefined -fno-sanitize-recover=undefined"


def pytest(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pytest", *arguments]
    print(*environment, *arguments, flush=True)
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True)


def sanitized(folder: Path) -> dict[str, str]:
    """Build the compiled parts in a copy of the package; the environment that uses them."""
    unwanted = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, env={**os.environ, "CFLAGS": FLAGS}, check=True)
    built = sorted(path.name.split(".")[0] for path in folder.rglob("src/**/*.so"))
    assert built == ["_ctc_beam", "_graph_beam", "_output", "_solver"], (
        f"built {built} alone: is there a C compiler?"
    )
    libraries = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libstdc++.so")  # the second for the exceptions of others
    ]
    return {
        "PYTHONPATH": str(folder / "src"),
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps memory until it ends
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n")[0], prog="python -m tests.campaign"
    )
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    rounds = parser.parse_args().rounds
    longer = ("--hypothesis-profile=campaign", "-m", "hypothesis")
    pytest("tests", *longer, OAXE_ROUNDS=str(rounds))
    for _ in range(rounds):
        pytest(*KILLS)
    with TemporaryDirectory() as folder:
        environment = sanitized(Path(folder))
        pytest("-s", *IN_C, **environment)  # -s: what a sanitizer says is seen
        pytest("-s", IN_C[0], *longer, OAXE_ROUNDS=str(rounds), **environment)


if __name__ == "__main__":
    main()
