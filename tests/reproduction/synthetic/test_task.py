"""The synthetic task against the paper's table."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from oaxe.text.symbols import SYMBOLS
from reproduction.synthetic.task import ORDERINGS, PROBABILITIES, SPLITS, Task, reorder

TASK = Task(modes=5, numbers=40, shortest=3, longest=9, train=4_000, valid=50, test=60)


def by_slicing(numbers: list[int]) -> dict[str, list[int]]:
    """The five orderings, written another way."""
    middle = len(numbers) - len(numbers) // 2
    left, right = numbers[:middle], numbers[middle:]
    return {
        "Direct": left + right,
        "Reverse": right[::-1] + left[::-1],
        "Flip": right + left,
        "Flip-Right-Rev": right + left[::-1],
        "Flip-Left-Rev": right[::-1] + left,
    }


def test_orderings_are_the_paper_s() -> None:
    targets = ["1 3 10 7 9 2", "2 9 7 10 3 1", "7 9 2 1 3 10", "7 9 2 10 3 1", "2 9 7 1 3 10"]
    source = [1, 3, 10, 7, 9, 2]
    assert [reorder(source, mode) for mode in range(5)] == [
        [int(number) for number in target.split()] for target in targets
    ]


@pytest.mark.parametrize("n", range(14))
def test_orderings_of_any_length(n: int) -> None:
    numbers = list(range(100, 100 + n))
    expected = by_slicing(numbers)
    assert {name: reorder(numbers, mode) for mode, name in enumerate(ORDERINGS)} == expected
    if n % 2:  # the middle number belongs to the left half
        middle = numbers[n // 2]
        for name in ("Direct", "Reverse", "Flip-Right-Rev"):
            assert expected[name][n // 2] == middle


def test_data_follow_the_task() -> None:
    corpus = TASK.corpus("train", seed=3)
    assert len(corpus) == TASK.train
    counts: Counter[str] = Counter()
    for source, target in zip(corpus.sources, corpus.targets, strict=True):
        orders = by_slicing(source.tolist())
        names = [name for name, right in orders.items() if right == target.tolist()]
        assert names
        if len(set(source.tolist())) == len(source) > 3:  # then only one ordering fits
            assert len(names) == 1
            counts[names[0]] += 1
    total = counts.total()
    for name, chance in zip(ORDERINGS, PROBABILITIES[5], strict=True):
        # five standard deviations
        assert abs(counts[name] / total - chance) < 5 * (chance * (1 - chance) / total) ** 0.5
    lengths = Counter(corpus.source_lengths.tolist())
    assert set(lengths) == set(range(3, 10))
    assert min(lengths.values()) > 0.8 * TASK.train / 7
    assert set(corpus.sources.tokens.tolist()) == set(range(len(SYMBOLS), TASK.vocab_size))
    assert all(sum(chances) == pytest.approx(1) for chances in PROBABILITIES.values())


def test_generator_depends_on_its_seed_alone() -> None:
    def tokens(task: Task, split: str, seed: int) -> list[int]:
        corpus = task.corpus(split, seed)
        return [*corpus.sources.tokens.tolist(), *corpus.targets.tokens.tolist()]

    torch.manual_seed(0)
    first = tokens(TASK, "valid", 1)
    assert tokens(replace(TASK, train=10, test=5), "valid", 1) == first
    assert tokens(TASK, "valid", 2) != first
    assert len({tuple(tokens(replace(TASK, train=50, test=50), s, 1)) for s in SPLITS}) == 3


@pytest.mark.parametrize("changes", [{"modes": 6}, {"numbers": 1}, {"shortest": 0}, {"longest": 2}])
def test_rejects_impossible_tasks(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        replace(TASK, **changes)
