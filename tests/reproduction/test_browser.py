"""The reports as a browser shows them. Needs ``chromium`` on the PATH; it fetches nothing."""

import json
import random
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from oaxe.evaluation.evaluate import Options, evaluate
from oaxe.evaluation.page import report_page
from oaxe.evaluation.references import References
from reproduction.synthetic.demo_page import write_page
from tests.evaluation.samples import write
from tests.reproduction.synthetic.test_demo_page import (
    failed_result,
    full_result,
    interrupted_result,
)

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--dump-dom",
]  # fmt: skip

# Holds the page in a frame, as wide as a phone (a window has at least 500 pixels), measures it,
# and leaves what it found where --dump-dom shows it.
FRAME = """<!DOCTYPE html>
<body><iframe width="WIDTH" height="800" style="border: 0" srcdoc="PAGE"></iframe>
<pre id="measured"></pre>
<script>
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument;
  const boxes = what => [...page.querySelectorAll(what)].map(e => e.getBoundingClientRect());
  document.querySelector("pre").textContent = JSON.stringify({
    width: page.defaultView.innerWidth,
    scroll_width: page.documentElement.scrollWidth,
    pictures: boxes("svg, img").map(box => [box.width, box.height]),
    labels: boxes("svg text").map(box => box.height),
    tables: boxes(".scroll").map(box => [box.left, box.right]),
  });
});
</script></body>"""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH (Debian: apt-get install chromium)"
)


def browse(page: str, folder: Path, width: int) -> tuple[dict[str, Any], list[str]]:
    """What a page measures in a frame of some width, and what its console says."""
    assert CHROMIUM is not None
    frame = folder / "frame.html"
    text = FRAME.replace("WIDTH", str(width)).replace("PAGE", escape(page))
    frame.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1300,900",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"chromium ended with {done.returncode} and showed nothing:\n{done.stderr}"
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(unescape(found[1])), console


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize(
    ("result", "pictures"),
    [
        (full_result(), 2),
        (failed_result(), 2),
        (interrupted_result(), 2),
        (interrupted_result("start"), 0),
    ],
    ids=["full", "failed", "interrupted", "stopped at once"],
)
def test_report(result: dict[str, Any], pictures: int, width: int, tmp_path: Path) -> None:
    write_page(result, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    found, console = browse(page, tmp_path, width)
    assert console == []
    assert found["width"] == width
    assert found["scroll_width"] <= width
    assert len(found["pictures"]) == pictures
    for across, down in found["pictures"]:
        assert 250 < across <= width
        assert 150 < down < 700
    assert all(height >= 9 for height in found["labels"])  # pixels: small, but to be read
    assert bool(found["labels"]) == bool(pictures)
    assert found["tables"]
    assert all(0 <= left < right <= width for left, right in found["tables"])


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("systems", [1, 7])
def test_evaluation(systems: int, width: int, tmp_path: Path) -> None:
    rng = random.Random(1)
    words = ["<b>bold</b>", "Donaudampfschifffahrtsgesellschaftskapitän" * 2, "a", "dog", "&amp;"]
    lines = [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(30)]
    gold = References(
        [[line, line[::-1]] for line in lines], lines, "de", [write(tmp_path / "r", lines)]
    )
    hypotheses = []
    for number in range(systems):
        outputs = [" ".join(rng.choices(words, k=rng.randint(0, 40))) for _ in lines]
        name = f"_$x^$ {number}: a system with a rather long name, longer than any picture"
        hypotheses.append(f"{name}={write(tmp_path / str(number), outputs)}")
    report, _ = evaluate(gold, hypotheses, [], Options(examples=4, trials=10))
    found, console = browse(report_page(report), tmp_path, width)
    assert console == []
    assert found["width"] == width
    assert found["scroll_width"] <= width
    assert len(found["pictures"]) == 1
    ((across, down),) = found["pictures"]
    assert 250 < across <= width
    assert 150 < down < 700
    assert all(height >= 9 for height in found["labels"])
    assert len(found["tables"]) == 3
    assert all(0 <= left < right <= width for left, right in found["tables"])


def test_the_measurement_sees_what_is_wrong(tmp_path: Path) -> None:
    page = '<body><script>console.error("oh")</script><p style="width: 500px">wide</p></body>'
    found, console = browse(page, tmp_path, 360)
    assert len(console) == 1
    assert found["scroll_width"] > 360
