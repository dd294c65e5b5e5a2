"""The page of the demonstration, finished or stopped."""

import io
import json
import random
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from oaxe.support.html import page, paragraph, svg, table
from reproduction.synthetic.demo_page import write_page
from reproduction.synthetic.demo_text import interpretation, marks, score_table, show
from reproduction.synthetic.task import ORDERINGS, reorder

VOID = {"meta", "link", "br", "img", "hr", "input"}


def full_result() -> dict[str, Any]:
    """As the demonstration writes it, with the longest sequences."""
    rng = random.Random(1)
    sources = [rng.sample(range(100), n) for n in (16, 9, 12)]
    likely = [0.14, 0.25, 0.13, 0.39, 0.09]
    n, target = 16, reorder(sources[0], 1)
    orders = [reorder(list(range(n)), mode) for mode in range(5)]
    drawn = [target.index(number) for number in sources[0]]  # column of each source position
    probability = [[0.001] * n for _ in range(n)]
    for order, chance in zip(orders, likely, strict=True):
        for position in range(n):
            probability[position][drawn[order[position]]] += chance
    none = dict.fromkeys((*ORDERINGS, "none"), 0)
    mixed = [
        [rng.choice([a, a, b]) for a, b in zip(reorder(s, 3), reorder(s, 1), strict=True)]
        for s in sources
    ]
    return {
        "finished": True,
        "seed": 1,
        "seconds": 118.2,
        "recipe": {
            "numbers": 100, "shortest": 8, "longest": 16, "train": 24000, "valid": 500,
            "test": 500, "updates": 420, "xe_updates": 280,
        },
        "scores": {
            "oaxe": {
                "exact_match": 99.8, "repetition": 0.0, "confidence": 0.99,
                "chosen": {**none, "Flip-Right-Rev": 499, "none": 1},
                "examples": [{"source": s, "output": reorder(s, 3)} for s in sources],
            },
            "xe": {
                "exact_match": 4.2, "repetition": 8.1, "confidence": 0.61,
                "chosen": {**none, "Flip-Right-Rev": 21, "none": 479},
                "examples": [
                    {"source": s, "output": m} for s, m in zip(sources, mixed, strict=True)
                ],
            },
        },
        "curves": {
            "xe": [
                {"step": s, "exact_match": max(0, s - 240) / 45, "loss": 4.1}
                for s in range(40, 421, 20)
            ],
            "oaxe": [
                {"step": s, "exact_match": min(99.8, (s - 280) * 1.1), "loss": 1.0}
                for s in range(300, 421, 20)
            ],
        },
        "matrix": {
            "source": sources[0],
            "target": target,
            "probability": probability,
            "order": [target.index(number) for number in reorder(sources[0], 3)],
            "ordering": "Reverse",
        },
    }  # fmt: skip


def failed_result() -> dict[str, Any]:
    result = full_result()
    result["scores"]["oaxe"]["exact_match"] = 0.4
    return result


def interrupted_result(during: str = "oaxe") -> dict[str, Any]:
    """Stopped at once, during pre-training, while OaXE was training, or XE after it."""
    result = full_result()
    stages = ["start", "pretraining", "oaxe", "xe"]
    done = stages.index(during)
    tested = {"oaxe": result["scores"]["oaxe"]} if during == "xe" else {}
    xe = [point for point in result["curves"]["xe"] if point["step"] <= (0, 200, 280, 340)[done]]
    oaxe = result["curves"]["oaxe"][: (0, 0, 2, None)[done]]
    return {
        **result,
        "finished": False,
        "scores": tested,
        "curves": {"xe": xe, "oaxe": oaxe},
        "matrix": result["matrix"] if done > 1 else None,
    }


class Reader(HTMLParser):
    """Fails on tags that do not nest, and gathers what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.tags[tag] += 1
        for name, value in attributes:
            assert value is not None
            if name == "id":
                self.ids[value] += 1
            if name == "class":
                self.classes.update(value.split())
            if name in ("src", "href", "xlink:href"):
                self.references.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def written(result: dict[str, Any], folder: Path) -> Reader:
    """The page of a result, with what must hold for any."""
    path = folder / "report.html"
    write_page(result, path)
    assert [file.name for file in folder.iterdir()] == ["report.html"]  # nothing half-written
    text = path.read_text(encoding="utf-8")
    assert "http" not in text
    assert "@import" not in text
    reader = Reader(text)
    assert reader.tags["script"] == 0
    assert all(reference.startswith(("data:", "#")) for reference in reader.references)
    inner = {reference[1:] for reference in reader.references if reference.startswith("#")}
    assert inner <= set(reader.ids)
    assert set(reader.ids.values()) <= {1}
    return reader


def printed(result: dict[str, Any]) -> str:
    file = io.StringIO()
    show(result, Console(file=file, width=80))
    return file.getvalue()


def test_page_of_a_full_result(tmp_path: Path) -> None:
    result = full_result()
    reader = written(json.loads(json.dumps(result)), tmp_path)
    assert reader.tags["svg"] == 2  # curves, matrix
    assert reader.tags["title"] == 1 + 2
    for words in (
        "XE gets 4.2 % of the sequences right, OaXE 99.8 %", "7 9 2 10 3 1", "99.8 %", "0.61",
        "XE, then OaXE", "switch", "Flip-Right-Rev", "which is Flip-Right-Rev.", "24,000",
        "python -m reproduction demo --seed 1",
    ):  # fmt: skip
        assert words in reader.text, words
    found = Counter(
        mark
        for scores in result["scores"].values()
        for example in scores["examples"]
        for mark in marks(example["output"], example["source"])
    )
    assert found["repeated"]
    assert found["misplaced"]
    for mark in ("repeated", "misplaced"):  # one more in the legend
        assert reader.classes[mark] == found[mark] + 1
    assert "stopped" not in reader.text


@pytest.mark.parametrize(
    ("during", "charts", "words"),
    [
        ("start", 0, "XE was not tested. OaXE was not tested."),
        ("pretraining", 1, "XE was not tested; at update 200 it had 0.0 % right. OaXE was not"),
        (
            "oaxe",
            2,
            "at update 280 it had 0.9 % right. OaXE was not tested; at update 320 it had 44",
        ),
        ("xe", 2, "XE was not tested; at update 340 it had 2.2 % right. OaXE gets 99.8 %"),
    ],
)
def test_interrupted_result(during: str, charts: int, words: str, tmp_path: Path) -> None:
    result = json.loads(json.dumps(interrupted_result(during)))
    reader = written(result, tmp_path)
    assert reader.tags["svg"] == charts
    for text in (reader.text, " ".join(printed(result).split())):
        assert "This run was stopped before its end." in text
        assert words in text
        assert "None" not in text
    assert ("✓ Flip-Right-Rev" in reader.text) == (during == "xe")


def test_names_a_failure(tmp_path: Path) -> None:
    reader = written(failed_result(), tmp_path)
    assert "OaXE did not succeed in this run; another seed" in reader.text
    assert "OaXE did not succeed" in printed(failed_result())


@pytest.mark.parametrize(
    ("xe", "oaxe", "words"),
    [
        (4.2, 99.8, "OaXE settles on one"),
        (65.0, 95.0, "OaXE settles on one"),
        (96.0, 99.0, "XE does well here too"),
        (0.0, 60.0, "far ahead, but short of 95 %; another seed"),
        (0.0, 0.0, "did not succeed"),
        (50.0, 20.0, "did not succeed"),
    ],
)
def test_interpretation(xe: float, oaxe: float, words: str) -> None:
    scores = {"xe": {"exact_match": xe}, "oaxe": {"exact_match": oaxe}}
    assert words in interpretation({"finished": True, "scores": scores})


SOURCE = [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("output", "modes", "expected"),
    [
        ([1, 2, 3, 4, 5, 6], 1, "......"),
        ([6, 5, 4, 3, 2, 1], 2, "......"),
        ([6, 5, 4, 3, 2, 1], 1, "mmmmmm"),  # Reverse is no answer here
        ([4, 5, 6, 1, 2, 3], 5, "......"),  # Flip
        ([4, 5, 6, 3, 2, 1], 5, "......"),  # Flip-Right-Rev
        ([6, 5, 4, 1, 2, 3], 5, "......"),  # Flip-Left-Rev
        ([1, 1, 3, 4, 5, 6], 5, ".r...."),
        ([2, 2, 3, 4, 5, 6], 5, "mr...."),  # the right one comes second: a repetition
        ([1, 1, 1, 4, 5, 6], 5, ".rr..."),
        ([1, 3, 2, 4, 5, 6], 5, ".mm..."),
        ([9, 2, 9, 4, 5, 6], 5, "m.r..."),  # not in the source at all
        ([4, 5, 6, 3, 2, 2], 5, ".....r"),  # nearest to Flip-Right-Rev
    ],
)
def test_marks(output: list[int], modes: int, expected: str) -> None:
    names = {".": "right", "r": "repeated", "m": "misplaced"}
    assert marks(output, SOURCE, modes) == [names[letter] for letter in expected]


def test_marks_where_the_source_repeats() -> None:
    assert marks([7, 7, 8], [7, 7, 8], 1) == ["right"] * 3
    assert marks([7, 7, 7], [7, 7, 8], 1) == ["right", "right", "repeated"]
    assert marks([7, 8, 8], [7, 7, 8], 1) == ["right", "misplaced", "repeated"]


def test_marks_of_other_lengths() -> None:
    assert marks([], SOURCE, 5) == []
    assert marks([1, 2], SOURCE, 5) == ["right", "right"]
    assert marks([1, 2, 3], [1, 2], 1) == ["right", "right", "misplaced"]


def test_terminal_and_page_agree(tmp_path: Path) -> None:
    result = full_result()
    reader, text = written(result, tmp_path), printed(result)
    shown = score_table(result)
    for row in (shown.head, *shown.rows):
        assert all(cell in reader.text and cell in text for cell in row)
    assert interpretation(result) in " ".join(text.split())
    assert interpretation(result) in reader.text
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("\nsource ") == 3
    assert text.count("✓ Flip-Right-Rev") == reader.text.count("✓ Flip-Right-Rev") == 3


def test_text_is_escaped() -> None:
    nasty = '<script>alert("1 & 2")</script>'
    figure = Figure()
    figure.subplots().set_xlabel(nasty)
    body = paragraph(nasty) + table(nasty, [nasty], [[nasty, nasty]]) + svg(figure, nasty)
    reader = Reader(page(nasty, body))
    assert reader.tags["script"] == 0
    assert reader.words.count(nasty) == 9


def test_result_is_escaped(tmp_path: Path) -> None:
    result = full_result()
    result["seed"] = result["matrix"]["ordering"] = "<b>"
    result["scores"]["xe"]["examples"][0]["source"][0] = "<script>"
    result["scores"]["oaxe"]["examples"][0]["source"][0] = "<script>"
    reader = written(result, tmp_path)
    assert reader.tags["b"] == 0


def test_same_page_every_time(tmp_path: Path) -> None:
    texts = set()
    for _ in range(2):
        write_page(full_result(), tmp_path / "report.html")
        texts.add((tmp_path / "report.html").read_bytes())
    assert len(texts) == 1
    assert len(texts.pop()) < 200_000
