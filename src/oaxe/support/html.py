"""Pages in one file, without anything fetched: templates for HTML, charts as inline SVG."""

import io
import re
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("oaxe"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: object) -> str:
    """A template of ``oaxe/templates``. Every value but :class:`markupsafe.Markup` is escaped."""
    return _templates().get_template(template).render(**values)


def page(title: str, body: str, style: str = "") -> str:
    """A whole page. The title is text, the body HTML; ``style`` is added to the stylesheet.

    Example:
        >>> "<h1>1 &lt; 2</h1>" in page("1 < 2", "")
        True
    """
    return render("page.html", title=title, body=Markup(body), style=Markup(style))


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; kinds: ``lead``, ``note``, ``soft``."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text. The first cell of a row is its name."""
    return render("table.html", caption=caption, head=head, rows=rows)


def scroll(caption: str, inside: str) -> str:
    """A table, given as HTML, in a box that scrolls sideways where the page is too narrow."""
    return render("scroll.html", caption=caption, inside=Markup(inside))


def picture(height: float = 3.2) -> "tuple[Figure, Axes]":
    """A figure for :func:`svg`, with letters that can be read on a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, height))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=11)
    axes.xaxis.label.set_fontsize(12)
    axes.yaxis.label.set_fontsize(12)
    return figure, axes


def svg(figure: "Figure", title: str) -> str:
    """A figure as inline SVG, as wide as its column.

    Black becomes the text colour of the page, so that the figure can be read in dark mode too.

    Args:
        title: what the figure shows, for screen readers. Titles on a page must differ, since the
            ids inside the SVG are made from them.
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
