"""The page as a browser shows it. Needs ``chromium`` on the PATH; it asks this server only."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse

from oaxe.serving.guard import Access
from tests.serving.samples import model_of, serving, without_positions

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--dump-dom", "--virtual-time-budget=20000",
    "--window-size=1300,900",
]  # fmt: skip

# Types into the page, which it holds in a frame as wide as a phone, and writes down what it sees.
FRAME = """<!DOCTYPE html>
<body><iframe width="WIDTH" height="800" style="border: 0" src="./"></iframe>
<pre id="seen"></pre>
<script>
const until = async condition => {
  for (let i = 0; i < 100 && !condition(); i++) await new Promise(done => setTimeout(done, 50))
}
addEventListener("load", async () => {
  const inside = document.querySelector("iframe").contentWindow, page = inside.document
  const find = id => page.getElementById(id), text = id => find(id).textContent
  const happens = (id, value, name) => {
    find(id).value = value
    find(id).dispatchEvent(new inside.Event(name))
  }
  const seen = {}, all = what => [...page.querySelectorAll(what)]
  const asked = () => inside.performance.getEntriesByType("resource").map(entry => entry.name)
  const openPath = async () => {
    find("how").querySelector("summary").click()
    await until(() => all("#paths li").length)
    Object.assign(seen, {
      told: text("told"),
      legend: all("#legend li").map(item => item.textContent),
      boxes: all("#paths li")
        .map(item => [item.className, ...[...item.children].map(e => e.textContent)]),
      box_lang: page.querySelector("#paths b").lang,
      results: all("#paths section > p").map(e => e.textContent),
      path_scroll_width: page.documentElement.scrollWidth,
    })
    happens("source", ">i/<x>i<", "input")
    await until(() => text("target") === "<i>x</i>")
    seen.markup = [all("#paths i").length, text("paths")]
    happens("source", "A dog. A cat.\\nYes", "input")
    await until(() => all("#paths li").length > 3)
  }
  for (const typed of ["A", "A d", "A dog. A cat.\\nYes"]) happens("source", typed, "input")
  await until(() => text("target"))
  Object.assign(seen, {target: text("target"), took: text("took"), lang: find("target").lang})
  seen.asked = asked()
  seen.can_copy = [find("copy").getClientRects().length > 0]
  seen.others_hidden = find("others").hidden
  if (text("target")) await openPath()  // without a key nothing is translated
  happens("count", "2", "change")
  happens("model", "de-en", "change")
  await until(() => find("target").lang === "en")
  seen.others = all("#others li").map(item => item.textContent)
  seen.nothing = text("told") + text("legend") + text("paths")
  happens("source", "a ".repeat(9), "input")
  await until(() => text("error"))
  Object.assign(seen, {error: text("error"), old: find("target").className})
  happens("source", "", "input")
  await until(() => !text("error"))
  Object.assign(seen, {
    cleared: text("target") + text("took") + text("error"),
    can_copy: [...seen.can_copy, find("copy").getClientRects().length > 0],
    width: inside.innerWidth,
    scroll_width: page.documentElement.scrollWidth,
    columns: find("target").offsetLeft > find("source").offsetLeft + 100,
    unlabelled: all("input, select, textarea").filter(e => !e.labels.length).length,
    order: all("input, select, textarea, button, summary, a, [tabindex]")
      .filter(e => e.tabIndex >= 0 && e.getClientRects().length).map(e => e.id || e.textContent),
    paper: inside.getComputedStyle(page.body).backgroundColor,
  })
  document.getElementById("seen").textContent = JSON.stringify(seen)
})
</script></body>"""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH (Debian: apt-get install chromium)"
)


def browse(
    folder: Path, width: int, *flags: str, **options: Any
) -> tuple[dict[str, Any], list[str]]:
    """What is seen, and what the console of the browser says."""
    assert CHROMIUM is not None

    async def frame(request: Request) -> HTMLResponse:
        return HTMLResponse(FRAME.replace("WIDTH", str(width)))

    models = model_of("en-de"), model_of("de-en", without_positions)
    with serving(*models, **options) as endpoint:
        router: Any = endpoint.service.app._app
        router._endpoints["/frame"] = {"GET": frame}
        done = subprocess.run(
            [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={folder}", f"{endpoint.url}/frame"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"chromium ended with {done.returncode} and showed nothing:\n{done.stderr}"
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(unescape(found[1])), console


@pytest.mark.parametrize("width", [360, 1200])
def test_page(width: int, tmp_path: Path) -> None:
    dark = ["--blink-settings=preferredColorScheme=0"] if width == 360 else []
    seen, console = browse(tmp_path, width, *dark)
    assert [line for line in console if "422" not in line] == []  # one request is refused
    assert seen["target"] == ".god A .tac A\nseY"
    assert re.fullmatch(r"translated in [\d.]+ ms", seen["took"])
    assert seen["lang"] == "de"
    assert len(seen["asked"]) == 1  # for three changes
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/translate", seen["asked"][0])
    assert seen["others_hidden"]
    assert seen["others"] == [".GOD A .TAC A\nSEY"]
    assert seen["told"].startswith("Each box is a position of the decoder. ")
    legend = ["kept: 5 of 13", "blank, no word: 3 of 13", "repeat, merged: 5 of 13"]
    assert seen["legend"] == legend
    assert seen["boxes"][:4] == [
        ["kept", ".god", "25%", ", kept"],
        ["repeat", ".god", "100%", ", repeat"],
        ["kept", "A", "25%", ", kept"],
        ["repeat", "A", "100%", ", repeat"],
    ]
    assert seen["boxes"][-1] == ["blank", "blank", "100%", ", blank"]
    assert seen["box_lang"] == "de"
    assert seen["results"] == ["A dog.", ".god A", "A cat.", ".tac A", "Yes", "seY"]
    assert seen["path_scroll_width"] <= width
    assert seen["markup"] == [
        0,
        ">i/<x>i<<i>x</i>25%, kept<i>x</i>100%, repeatblank100%, blank<i>x</i>",
    ]
    assert seen["nothing"].startswith("Nothing to draw: ")
    assert seen["nothing"].endswith(" positions.")
    assert "9 subwords, the model reads 8" in seen["error"]
    assert seen["old"] == "old"  # the last translation, not of this text
    assert seen["cleared"] == ""
    assert seen["can_copy"] == [True, False]  # the translation, and nothing
    assert seen["width"] == width
    assert seen["scroll_width"] <= width
    assert seen["columns"] == (width > 1000)
    assert seen["unlabelled"] == 0
    assert seen["order"] == [
        "model", "count", "source", "target", "How it was made", "The interface for programs",
    ]  # fmt: skip
    assert seen["paper"] == ("rgb(21, 25, 29)" if dark else "rgb(255, 255, 255)")


def test_page_with_a_key(tmp_path: Path) -> None:
    seen, _ = browse(tmp_path, 360, access=Access(api_keys=["secret"]))
    assert "an API key is needed" in seen["error"]
    assert seen["unlabelled"] == 0
    assert seen["scroll_width"] <= 360
