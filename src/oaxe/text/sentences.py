"""Paragraphs into sentences, and their translations into paragraphs again.

The models read one sentence at a time. A sentence ends

- at a line break;
- at ``. ! ? …`` and their like, with the quotes and brackets that close behind, before white space
  and anything but a small letter or a comma;
- at ``。 ！ ？ ।`` and their like, whatever follows, unless a quote or bracket closes behind.

A single full stop ends no sentence behind a letter alone (``J. Bach``), letters with full stops
(``z.B.``), a number below 100 (``am 3. Mai``) or one of ABBREVIATIONS. So some sentences stay
together; rather that than a sentence in two. Thai, which writes no full stop, is not split.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oaxe.text.languages import is_unspaced_language

NARROW = ".!?…؟۔։‼⁇⁈⁉"  # before white space only
WIDE = "。！？｡।॥።។။"
CLOSING = "\"'”’»›)]}」』）】〉》］"
ABBREVIATIONS = frozenset(
    re.findall(
        r"\w+",
        "abb abs al approx art aug bzw ca capt cf co col corp dec dept dr ed eds eq etc evtl feb "
        "ff fig fr gen ggf hr hrsg inc inkl jan jr lt ltd max mio mr mrd mrs ms min mme nov nr no "
        "oct okt op p pp prof resp rev sen sept sgt sr sra st str tel tbl usw vgl vol vs zzgl",
    )
)
LINE_BREAKS = re.compile("([\n\r\v\f\x85\u2028\u2029]+)")
# Possessive: runs of marks or spaces are read once, however long.
MARKS = re.compile(f"[{re.escape(NARROW + WIDE)}]++[{re.escape(CLOSING)}]*+")
SPACES = re.compile(r"\s*+")
LETTERS = re.compile(r"[^\W\d_](\.[^\W\d_])*")


@dataclass(frozen=True)
class Paragraph:
    """A text as sentences and the white space around them: the gaps are one more.

    Example:
        >>> split_paragraph(" A dog. A cat!\\nA mouse")
        Paragraph(sentences=['A dog.', 'A cat!', 'A mouse'], gaps=[' ', ' ', '\\n', ''])
    """

    sentences: list[str]
    gaps: list[str]

    def filled(self, translations: Sequence[str], language: str = "") -> str:
        """The text with a translation for each sentence; line breaks stay.

        Example:
            >>> split_paragraph("犬だ。猫だ。\\n鼠だ。").filled(["A dog.", "A cat.", "A mouse."])
            'A dog. A cat.\\nA mouse.'

        Args:
            language: of the translations. Some languages have no space between sentences.
        """
        between = "" if is_unspaced_language(language) else " "
        first, *inner, last = self.gaps if len(self.gaps) > 1 else [*self.gaps, ""]
        pieces = [first]
        for number, translation in enumerate(translations):
            if number:
                gap = inner[number - 1]
                broken = LINE_BREAKS.search(gap)
                pieces.append(gap if broken or (gap and between) else between)
            pieces.append(translation)
        return "".join([*pieces, last])


class Paragraphs:
    """Several texts as one list of sentences, and translations of these as texts again."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.parts = [split_paragraph(text) for text in texts]

    @property
    def sentences(self) -> list[str]:
        return [sentence for part in self.parts for sentence in part.sentences]

    def filled(self, translations: Sequence[str], language: str = "") -> list[str]:
        """As many texts as there were, see :meth:`Paragraph.filled`."""
        every = iter(translations)
        return [part.filled([next(every) for _ in part.sentences], language) for part in self.parts]


def split_paragraph(text: str) -> Paragraph:
    """The sentences of a text, none of them blank, and the white space around them."""
    sentences, gaps = list[str](), [""]
    for number, piece in enumerate(LINE_BREAKS.split(text)):
        if number % 2:  # a line break
            gaps[-1] += piece
            continue
        for part in _parts(piece):
            sentence = part.strip()
            if not sentence:
                gaps[-1] += part
                continue
            before, _, after = part.partition(sentence)
            gaps[-1] += before
            sentences.append(sentence)
            gaps.append(after)
    return Paragraph(sentences, gaps)


def _parts(line: str) -> Iterator[str]:
    """A line, cut where its sentences end."""
    start = 0
    for marks in MARKS.finditer(line):
        if _ends(line, marks, start):
            yield line[start : marks.end()]
            start = marks.end()
    yield line[start:]


def _ends(line: str, marks: re.Match[str], start: int) -> bool:
    spaces = SPACES.match(line, marks.end())
    assert spaces is not None
    following = line[spaces.end() : spaces.end() + 1]
    run = marks[0].rstrip(CLOSING)
    if run[-1] in WIDE:
        return run == marks[0] or bool(spaces[0])
    if not spaces[0] or following.islower() or following in CLOSING + ",;:" + NARROW:
        return False
    if run != "." or run != marks[0]:
        return True
    word = line[max(start, line.rfind(" ", start, marks.start()) + 1) : marks.start()]
    word = word.lstrip("([{\"'“„«‘‚")
    if word.isdecimal():
        return len(word) > 2
    return not LETTERS.fullmatch(word) and word.lower() not in ABBREVIATIONS
