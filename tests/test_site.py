"""The site of the documents: it builds without a warning, its links lead somewhere, it is whole."""

import os
import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

import oaxe
from oaxe.systems import built_in

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
problems = run_path(str(DOCS / "links.py"))["problems"]


def test_reference_has_every_public_name_once() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    found = re.findall(r"^\.\. auto(?:function|class|exception):: oaxe\.(\w+)$", pages, re.M)
    assert sorted(found) == sorted(oaxe.__all__)


def test_pictures_of_the_kernels_can_be_drawn() -> None:
    pictures, page = run_path(str(DOCS / "pictures.py")), (DOCS / "kernels.md").read_text("utf-8")
    named = re.findall(r"\(images/kernels-(\w+)\.svg\)", page)
    assert named == ["matching", "linear", "packed", "lattice", "update"]
    for name in named:
        assert (DOCS / f"images/kernels-{name}.svg").stat().st_size > 10_000
        assert len(pictures[name]().axes) == 1


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser", "sphinx_copybutton", "matplotlib"):
        pytest.importorskip(package)  # the extra `docs`, which `make test` installs
    site = tmp_path / "site"
    strictly = ("--fail-on-warning", "--keep-going", "--quiet", "--doctree-dir", tmp_path)
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *strictly, DOCS, site],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )
    assert built.returncode == 0, built.stderr
    assert problems(site) == []
    reference = "".join(path.read_text(encoding="utf-8") for path in (site / "api").glob("*.html"))
    assert {f'id="oaxe.{name}"' in reference for name in oaxe.__all__} == {True}
    assert reference.count('class="formula"') > 15
    commands = (site / "commands.html").read_text(encoding="utf-8")
    assert all(f"oaxe {name}" in commands for name in ("build", "train", "config show", "data get"))
    assert "--length-candidates" in commands
    settings = (site / "settings.html").read_text(encoding="utf-8")
    assert all(f'id="system-{name.replace("_", "-")}"' in settings for name in built_in())
    for name in ("data.folder", "train.ema", "glat.start", "cmlm.loss.truncation", "decoding.beam"):
        assert f">{name}<" in settings
    glat = re.sub("<[^>]*>", "", (site / "glat.html").read_text(encoding="utf-8"))
    assert "def glance(self, example: Example" in glat  # parts of the source are included


def test_broken_links_and_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("a { background: url('https://example.org/a.png') }")
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there"></a><a href="#top"></a><a href="https://example.org"></a>'
        '<img src="data:image/png;base64,AA=="><link rel="stylesheet" href="style.css">'
    )
    (only,) = problems(tmp_path)
    assert "style.css" in only
    (tmp_path / "a.html").write_text(
        '<a href="c.html"></a><a href="b.html#gone"></a><script src="https://example.org/x.js">'
        '</script><link rel="stylesheet" href="//example.org/x.css"><img src="gone.png">'
    )
    found = "\n".join(problems(tmp_path))
    for wrong in ("c.html", "b.html#gone", "x.js", "x.css", "gone.png", "style.css"):
        assert wrong in found
    assert problems(tmp_path / "nothing") != []
