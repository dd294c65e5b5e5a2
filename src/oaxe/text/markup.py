"""The text between the tags of HTML, to be replaced by its translation."""

import re
from collections.abc import Iterator, Sequence
from html import escape, unescape

RAW = ("script", "style", "code", "pre")  # what is inside stays as it is
NAME = re.compile(r"</?([a-zA-Z][^\s/>]*+)|<[!?]")
INSIDE = re.compile(r"""[^>"']*+(?:"[^"]*+"[^>"']*+|'[^']*+'[^>"']*+)*+>""")


class Html:
    """HTML as texts, without entities, and what stands between them.

    Text is what stands between two tags: a sentence with a tag in it is translated in pieces.
    Comments and the insides of RAW elements are no text. Where a tag does not end, all that
    follows is text, as is a ``<`` that starts no tag.

    Example:
        >>> page = Html("<p title='>'>1 &lt; 2<br>yes</p>")
        >>> page.texts
        ['1 < 2', 'yes']
        >>> page.filled(["2 > 1", "ja"])
        "<p title='>'>2 &gt; 1<br>ja</p>"
    """

    def __init__(self, html: str) -> None:
        self._pieces = list(_pieces(html))

    @property
    def texts(self) -> list[str]:
        return [unescape(piece) for is_text, piece in self._pieces if is_text]

    def filled(self, texts: Sequence[str]) -> str:
        """The HTML with these texts in place of its own."""
        every = iter(texts)
        return "".join(
            escape(next(every), quote=False) if is_text else piece
            for is_text, piece in self._pieces
        )


def _pieces(html: str) -> Iterator[tuple[bool, str]]:
    """Text and tags, in time linear in the length of the HTML."""
    done = start = 0
    while (start := html.find("<", start)) >= 0:
        name = NAME.match(html, start)
        if not name:
            start += 1
            continue
        end = _end(html, start, name)
        if end < 0:
            break
        if html[done:start]:
            yield True, html[done:start]
        yield False, html[start:end]
        done = start = end
    if html[done:]:
        yield True, html[done:]


def _end(html: str, start: int, name: re.Match[str]) -> int:
    """The end of the tag, comment or raw element that starts here; -1 if it has none."""
    if html.startswith("<!--", start):
        found = html.find("-->", start + 2)
        return found + 3 if found >= 0 else -1
    tag = INSIDE.match(html, name.end())
    if not tag:
        return -1
    element = (name[1] or "").lower()
    if element not in RAW or html[start + 1] == "/":
        return tag.end()
    closing = re.compile(f"</{re.escape(element)}\\s*+>", re.IGNORECASE).search(html, tag.end())
    return closing.end() if closing else -1
