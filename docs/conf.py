"""The site: `make docs` builds it into `site/`. Nothing in it comes from another host."""

import html
import io
import sys
from pathlib import Path
from typing import Any

import matplotlib
from docutils.nodes import Element, SkipNode
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import math_to_image
from sphinx.application import Sphinx

import oaxe

sys.path.insert(0, str(Path(__file__).parent))

project = "oaxe"
author = "oaxe developers"
copyright = "oaxe developers, MIT licence"
release = version = oaxe.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "reference",
]
nitpicky = True  # a name in a docstring that leads nowhere is an error
nitpick_ignore_regex = [
    ("py:.*", r"oaxe\.\w+(\..*)?"),  # inner modules, named for readers of the source
]

myst_heading_anchors = 4  # as on the usual code hosts: #title-of-a-section

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings have the shapes; with types an overloaded call has no names
napoleon_numpy_docstring = False
napoleon_use_rtype = False
add_module_names = False

html_theme = "furo"
html_title = "oaxe"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "drawn"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def draw_math(writer: Any, node: Element) -> None:
    """Formulas as pictures in the page, of the colour of its text: no script, no font."""
    formula = " ".join(node.astext().split())
    inline = node.tagname == "math"
    font = FontProperties(size=12 if inline else 14, math_fontfamily="stix")
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "oaxe", "savefig.facecolor": "none"}):
        depth = math_to_image(f"${formula}$", file, font, dpi=72, format="svg")
    picture = file.getvalue().partition("<svg ")[2]
    style = f"vertical-align: {-depth:.1f}pt" if inline else "max-width: none"
    tag, label = "span" if inline else "div", html.escape(formula)
    start = f'<svg role="img" aria-label="{label}" style="{style}" fill="currentColor"'
    writer.body.append(f'<{tag} class="formula">{start} {picture}</{tag}>')
    raise SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("drawn", (draw_math, None), (draw_math, None))
