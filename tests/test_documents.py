"""Code in the documents runs, and does what they say."""

import re
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment

import oaxe

PAGE = Path(__file__).parent.parent / "docs/sets.md"


def test_sets() -> None:
    found: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    exec(blocks[0], found)
    assert found["right"] > 0.8
    xe: dict[str, Any] = {}
    exec(blocks[0].replace("oaxe_loss", "xe_loss"), xe)
    assert xe["right"] < 0.1
    exec(blocks[1], found)
    match, cost, there = found["match"], found["cost"], found["there"]
    for ours, costs, real in zip(match, cost, there, strict=True):
        slots, objects = linear_sum_assignment(costs[:, real])
        expected = torch.full_like(ours, -1)
        expected[slots] = torch.from_numpy(objects)
        assert ours.equal(expected)
    assert found["target"][match < 0].eq(found["CLASSES"]).all()
    assert found["loss"].isfinite()


def test_what_the_page_warns_of() -> None:
    logits = torch.zeros(1, 4, 5)
    logits[0, 3, 2] = 9.0  # the last slot knows it
    ignored, filled = (torch.tensor([[2, rest, rest, rest]]) for rest in (-100, 0))
    assert oaxe.oaxe_loss(logits, ignored) > 1  # only the first slot takes part
    by_slot = oaxe.oaxe_loss(logits, filled, reduction="none")[0]
    assert by_slot[3] < 0.01
    assert oaxe.oaxe_loss(torch.zeros(1, 4, 50), filled, truncation=0.15) == 0
