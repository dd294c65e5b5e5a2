"""Pages that are one file: no scripts, nothing fetched, for light and dark, for desk and phone."""

import io
import re
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2329; --soft: #5b6670; --line: #d9dee3;
  --note: #fdf3d7; --red: #b3202f; --amber: #8a5a00; --good: #00687a }
@media (prefers-color-scheme: dark) { :root { --paper: #15191d; --ink: #e4e8eb; --soft: #9aa5ae;
  --line: #343c43; --note: #3a3014; --red: #ff8591; --amber: #f2bd5c; --good: #58c4d6 } }
body { margin: 0 auto; max-width: 48rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1rem 0 }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem }
p { margin: .6rem 0 }
.lead { font-size: 1.15rem; border-left: 4px solid var(--good); padding-left: .8rem }
.note { background: var(--note); padding: .6rem .8rem; border-radius: 6px }
.soft, caption { color: var(--soft); font-size: .9rem }
.scroll { overflow-x: auto; width: fit-content; min-width: 100%; max-width: calc(100vw - 4rem);
  margin: .8rem 0 .8rem 50%; transform: translateX(-50%) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
caption { text-align: left; padding-bottom: .3rem }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap }
th:first-child { text-align: left; padding-left: 0 }
thead th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom }
@media (min-width: 48rem) { .scroll th:first-child { position: sticky; left: 0;
  background: var(--paper) } }
@media (max-width: 30rem) { table { font-size: .88rem } th, td { padding: .3rem .4rem } }
svg, img { display: block; width: 100%; max-width: 32rem; height: auto; margin: .8rem 0 }
svg { fill: currentColor }
"""


def page(title: str, body: str, style: str = "") -> str:
    """A whole page. The title is text; the body is HTML, and ``style`` is added to the stylesheet.

    Example:
        >>> "<h1>1 &lt; 2</h1>" in page("1 < 2", "")
        True
    """
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}
</body>
</html>
"""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; kinds: ``lead``, ``note``, ``soft``."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text whose rows start with their names. It scrolls in a box of its own."""
    columns = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    return scroll(
        caption,
        f"<caption>{escape(caption)}</caption><thead><tr>{columns}</tr></thead>"
        f"<tbody>{body}</tbody>",
    )


def scroll(name: str, inside: str) -> str:
    """A table, given as HTML, in a box that scrolls sideways where the page is too narrow."""
    return (
        f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0">'
        f"<table>{inside}</table></div>"
    )


def picture(width: float = 4.8, height: float = 3.2) -> "tuple[Figure, Axes]":
    """A figure for :func:`svg`, with letters that can be read on a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=11)
    axes.xaxis.label.set_fontsize(12)
    axes.yaxis.label.set_fontsize(12)
    return figure, axes


def svg(figure: "Figure", title: str) -> str:
    """A figure as inline SVG, as wide as its column.

    What is black in it takes the page's colour for text, so that it can be read in the dark too.

    Args:
        title: what the picture shows, for those who cannot see it. No two on a page may be equal:
            the ids inside the SVG are made of it.
    """
    import matplotlib

    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", metadata=nothing)
    opening, inside = file.getvalue().split("<svg", 1)[1].split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None
    own = f"f{zlib.crc32(title.encode()):08x}-"
    inside = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{own}", inside)
    inside = inside.replace("#000000", "currentColor")
    return f'<svg role="img" {box[0]}><title>{escape(title)}</title>{inside}'
