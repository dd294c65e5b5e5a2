"""What is installed: the extras, what is said without them, and the files of a wheel."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import oaxe
from oaxe.support.errors import UserError
from oaxe.support.extras import EXTRAS, missing_extra, require_extra

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REQUIRED = {"torch", "numpy", "scipy"}
DISTRIBUTIONS = {
    "python_multipart": "python-multipart",
    "yaml": "PyYAML",
}  # where the name of the module is another
COMES_WITH_TORCH = {"triton"}
# torch.utils.tensorboard, starlette and uvicorn import these.
UNIMPORTED = {"tensorboard", "python_multipart", "httptools"}


def distribution(requirement: str) -> str:
    return requirement.replace("<", ">").split(">")[0]


def test_the_loss_library_needs_torch_numpy_and_scipy_only() -> None:
    assert {distribution(name) for name in PROJECT["project"]["dependencies"]} == REQUIRED


def test_extras_are_those_of_the_messages() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {"toolkit", "plot", "cpu", "ctranslate2", "serve", "docs", "dev"}
    for extra, modules in EXTRAS.items():
        expected = sorted((DISTRIBUTIONS.get(name, name) for name in modules), key=str.lower)
        own = [name for name in extras[extra] if not name.startswith("oaxe[")]
        assert [distribution(name) for name in own] == expected
    assert extras["serve"][0] == "oaxe[toolkit]"
    assert "oaxe[toolkit,plot,cpu,serve,docs]" in extras["dev"]


def test_every_import_of_the_product_is_in_an_extra() -> None:
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
    others = imported - set(sys.stdlib_module_names) - {"oaxe"} - REQUIRED - COMES_WITH_TORCH
    optional = {name for modules in EXTRAS.values() for name in modules}
    assert others <= optional
    assert optional - others <= UNIMPORTED


def test_version_is_written_once() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "oaxe.__version__"}


def test_citation_and_templates_can_be_read() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["authors"] == [{"name": "oaxe developers"}]
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["references"][0]["url"] == PROJECT["project"]["urls"]["Paper"]
    assert "version" not in citation  # it would be a second place
    templates = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert [path.stem for path in templates] == ["bug", "question"]
    for path in templates:
        assert yaml.safe_load(path.read_text(encoding="utf-8")).keys() >= {"name", "body"}
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"].values()
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert len(used) >= 4
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)  # a tag can move
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    named = [f"Programming Language :: Python :: {version}" for version in versions]
    assert [c for c in PROJECT["project"]["classifiers"] if c[-2:].isdigit()] == named
    commands = " ".join(str(step.get("run")) for job in jobs for step in job["steps"])
    files = set(re.findall(r"tests/[\w/]+\.py", commands))
    assert len(files) >= 9
    assert all((ROOT / file).is_file() for file in files)


UNIX = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
UNIX_NAMES = {"fork", "forkpty", "getuid", "geteuid", "killpg", "setsid"}
SIGNALS = {"SIGINT", "SIGTERM", "SIG_IGN", "SIG_DFL"}  # on every system
SIGNALS |= {"SIG_BLOCK", "SIG_SETMASK"}  # these come with pthread_sigmask, which is asked for first


def test_nothing_needs_unix_to_be_imported() -> None:
    """Windows lacks these modules and names, and most signals."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & UNIX, path
            elif isinstance(node, ast.ImportFrom):
                assert str(node.module).split(".")[0] not in UNIX, path
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "os" or node.attr not in UNIX_NAMES, path
                is_signal = node.value.id == "signal" and node.attr.startswith("SIG")
                assert not is_signal or node.attr in SIGNALS, path


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {modules!r} or name.split(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
COMPILED = (
    "oaxe.losses._solver",
    "oaxe.search._ctc_beam",
    "oaxe.search._graph_beam",
    "oaxe.engine._output",
)
OTHERS_FIRST = """
import pkgutil
from importlib import import_module
for name in {others!r}:
    import_module(name)
import torch.utils.tensorboard, sacrebleu.metrics
"""
EVERY_MODULE = """
import os
import oaxe
for name in {names!r}:
    delattr(os, name)
for name in {modules!r}:
    sys.modules.pop(name, None)
found = [m.name for m in pkgutil.walk_packages(oaxe.__path__, "oaxe.")]
for name in found:
    if ".kernels." not in name and not name.endswith((".ctranslate", ".__main__", *{modules!r})):
        import_module(name)
print(len(found))
"""
WITHOUT_C = """
import warnings
import numpy as np
import torch
from oaxe.engine.output import Int8Output, pack
from oaxe.losses.assignment import linear_assignment
assert oaxe.assignment_backend() == "scipy"
table = np.arange(-60, 60, dtype=np.int8).reshape(15, 8)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for _ in range(3):
        print(linear_assignment(torch.tensor([[[4.0, 1.0], [2.0, 0.0]]])).tolist())
        layer = Int8Output(pack(table), np.ones(15, np.float32), table.sum(1, dtype=np.int32))
        print(layer.likeliest(np.ones((1, 8), np.float32), ())[0].tolist())
print(*(warning.message for warning in warned), sep="\\n")
"""


def test_everything_works_without_unix_and_without_the_compiled_parts() -> None:
    """As on Windows without a compiler. (Triton and CTranslate2 need not be there.)

    Every module is imported, a command runs, and what is slower says so once.
    """
    absent = (*(UNIX - {"posix"}), *COMPILED)
    # Modules of others know Windows themselves.
    others = [name for modules in EXTRAS.values() for name in modules if name != "ctranslate2"]
    code = OTHERS_FIRST.format(others=others) + BLOCKED.format(modules=absent)
    code += EVERY_MODULE.format(names=sorted(UNIX_NAMES), modules=absent) + WITHOUT_C
    command = [sys.executable, "-c", code + script("config", "list")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    number, *lines = result.stdout.splitlines()
    assert int(number) > 150
    assert lines[:6] == ["[[1, 0]]", "[14]"] * 3
    solver, output, configuration = lines[6:9]
    assert solver.startswith("oaxe is installed without its compiled part: scipy solves")
    assert output.startswith("oaxe is installed without its compiled part: numpy multiplies")
    assert all("--force-reinstall" in line for line in (solver, output))
    assert configuration.startswith("multi30k/at ")


def test_what_is_installed_works(tmp_path: Path) -> None:
    """What is done with every wheel."""
    command = [sys.executable, "-P", str(ROOT / "tests/installed.py")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert " modules, " in done.stdout


def run_without(modules: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED.format(modules=modules) + code]
    return subprocess.run(command, capture_output=True, text=True)


def script(*arguments: str) -> str:
    """What the console script does."""
    return f"from oaxe.__main__ import main\nsys.argv = {['oaxe', *arguments]!r}\nmain()"


@pytest.mark.parametrize("missing", [("typer",), ("rich",), EXTRAS["toolkit"]])
def test_command_line_without_the_toolkit(missing: tuple[str, ...]) -> None:
    result = run_without(missing, script("data", "list"))
    who = "this command" if missing == ("rich",) else "the command line"
    assert result.stderr == f'error: {who} needs: pip install "oaxe[toolkit]"\n'
    assert result.returncode == 1


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("yaml", ("train", "multi30k/oaxe"), "toolkit"),
        ("starlette", ("serve", "--model", "none"), "serve"),
    ],
)
def test_a_command_without_a_package_of_its_extra(
    missing: str, command: tuple[str, ...], extra: str
) -> None:
    result = run_without((missing,), script(*command))
    assert result.stderr == f'error: this command needs: pip install "oaxe[{extra}]"\n'
    assert result.returncode == 1


@pytest.mark.parametrize("missing", ["sentencepiece", "safetensors"])
def test_translator_without_the_toolkit(missing: str) -> None:
    result = run_without((missing,), "import oaxe\noaxe.Translator")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    needs = f'oaxe.Translator needs {missing}: pip install "oaxe[toolkit]"'
    assert last == f"ImportError: {needs}"


def test_other_missing_modules_are_no_extra() -> None:
    assert missing_extra(ModuleNotFoundError(name="no_such_module")) is None
    assert missing_extra(ModuleNotFoundError("no name")) is None
    assert missing_extra(ModuleNotFoundError(name="sacrebleu.metrics")) is not None


def test_an_extra_can_be_required_before_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("plot", "--out")
    monkeypatch.setitem(EXTRAS, "plot", ("matplotlib", "no_such_module"))
    with pytest.raises(UserError, match=r'^--out needs: pip install "oaxe\[plot\]"$'):
        require_extra("plot", "--out")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, so that no earlier build leaves a trace."""
    tree = tmp_path_factory.mktemp("tree")
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, tree)
    for name in ("src", "reproduction", "benchmarks", "tests"):
        unwanted = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted)
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path) -> zipfile.ZipFile:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", tree / "wheels", tree], check=True)
    (path,) = (tree / "wheels").glob("*.whl")
    return zipfile.ZipFile(path)


def test_source_archive_can_be_built_from(tree: Path) -> None:
    """It is made as `python -m build --sdist` does, and holds all that a wheel is made of."""
    build = "from setuptools.build_meta import build_sdist as build\nbuild('archives')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (path,) = (tree / "archives").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src/oaxe").rglob("*")
        if path.is_file() and path.suffix not in (".so", ".pyd", ".pyc")
    }
    assert len(sources) > 100
    assert sources <= names
    others = "pyproject.toml setup.py README.md LICENSE CHANGELOG.md CITATION.cff SECURITY.md"
    assert {*others.split()} <= names
    assert not {name.split("/")[0] for name in names} & {"reproduction", "benchmarks", "tests"}


def test_wheel_holds_the_product_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"oaxe"}
    tracked = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "oaxe").rglob("*")
        if path.is_file() and path.suffix not in (".c", ".h", ".so", ".pyc")
    }
    compiled = {
        name
        for name in names
        if name.startswith(tuple(f"{part.replace('.', '/')}.abi3." for part in COMPILED))
    }
    assert names - compiled == tracked
    for expected in ("oaxe/py.typed", "oaxe/configs/multi30k/oaxe.yaml", "oaxe/losses/_solver.pyi"):
        assert expected in names


def test_wheel_says_what_it_needs(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = wheel.read(name).decode().split("\n\n")[0].splitlines()
    assert f"Version: {oaxe.__version__}" in metadata
    needs = {line.split(": ")[1] for line in metadata if line.startswith("Requires-Dist")}
    assert {distribution(n).split(",")[0] for n in needs if "extra ==" not in n} == REQUIRED
    (scripts,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert "oaxe = oaxe.__main__:main" in wheel.read(scripts).decode()
