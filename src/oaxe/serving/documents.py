"""The texts of a request as one list of sentences; answers from the hypotheses of each."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from math import exp
from typing import Any

from oaxe.decoding.translator import Translation
from oaxe.search.hypothesis import Positions
from oaxe.serving.requests import Wanted
from oaxe.text.markup import Html
from oaxe.text.sentences import Paragraph, split_paragraph

Hypotheses = Sequence[Translation]


class Document:
    """One text, plain or HTML."""

    def __init__(self, text: str, *, is_html: bool = False, split: bool = True) -> None:
        self._html = Html(text) if is_html else None
        texts = self._html.texts if self._html else [text]
        self._parts = [split_paragraph(t) if split else Paragraph([t], ["", ""]) for t in texts]
        self.sentences = [sentence for part in self._parts for sentence in part.sentences]

    def filled(self, translations: Sequence[str], language: str) -> str:
        """The text again, with a translation for each sentence."""
        every = iter(translations)
        texts = [
            part.filled(list(islice(every, len(part.sentences))), language) for part in self._parts
        ]
        return self._html.filled(texts) if self._html else texts[0]

    def alternatives(self, found: Sequence[Hypotheses], count: int, language: str) -> list[str]:
        """Other translations, best first: of each sentence the next hypothesis, if it has one."""
        most = max(map(len, found), default=1)
        every = (
            self.filled([h[rank].text if rank < len(h) else h[0].text for h in found], language)
            for rank in range(most)
        )
        return list(dict.fromkeys(every))[1 : 1 + count]


class Documents:
    """All texts of a request."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        is_html, split = wanted.format == "html", wanted.split
        self._documents = [Document(t, is_html=is_html, split=split) for t in wanted.texts]
        self.sentences = [s for document in self._documents for s in document.sentences]

    def answer(
        self, found: Sequence[Hypotheses], language: str, subword: Callable[[int], str]
    ) -> dict[str, Any]:
        """The fields of an answer, as LibreTranslate has them, and ``details`` if wanted.

        Args:
            found: the hypotheses of each sentence.
            language: of the translations.
            subword: the name of a token.
        """
        every = iter(found)
        grouped = [(d, list(islice(every, len(d.sentences)))) for d in self._documents]
        best = [d.filled([h[0].text for h in its], language) for d, its in grouped]
        answer: dict[str, Any] = {"translatedText": self.as_asked(best)}
        if count := self._wanted.alternatives:
            others = [d.alternatives(its, count, language) for d, its in grouped]
            answer["alternatives"] = self.as_asked(others)
        if self._wanted.details:
            describe_by = partial(describe, subword)
            details = [list(map(describe_by, d.sentences, its)) for d, its in grouped]
            answer["details"] = self.as_asked(details)
        return answer

    def as_asked(self, values: list[Any]) -> Any:
        """One value for one text, a list for a list."""
        return values[0] if isinstance(self._wanted.q, str) else values


def describe(subword: Callable[[int], str], source: str, found: Hypotheses) -> dict[str, Any]:
    hypotheses = [
        {
            "text": h.text,
            "score": round(h.score, 6),
            "length": h.length,
            "tokens": h.tokens,
            "positions": h.positions and describe_positions(subword, h.positions),
        }
        for h in found
    ]
    return {"source": source, "translations": hypotheses}


def describe_positions(subword: Callable[[int], str], said: Positions) -> list[dict[str, Any]]:
    """In order what each position of the decoder predicted, and what became of it."""
    columns = zip(said.tokens.tolist(), said.log_probs.tolist(), said.fates(), strict=True)
    return [
        {"subword": subword(token), "probability": min(1.0, float(f"{exp(lp):.4g}")), "fate": fate}
        for token, lp, fate in columns
    ]
