"""Which sentences share a pass."""

import random

import pytest

from oaxe.engine.passes import PASS, cheapest, shared


def cost(passes: list[list[int]], lengths: list[int]) -> int:
    return sum(PASS + len(some) * max(lengths[i] for i in some) for some in passes)


def every_cut(order: list[int]) -> list[list[list[int]]]:
    """All ways to cut a row into pieces."""
    return [[order]] + [
        [order[:end], *rest] for end in range(1, len(order)) for rest in every_cut(order[end:])
    ]


@pytest.mark.parametrize("size", [1, 20, 60, 1_000])
def test_nothing_is_cheaper(size: int) -> None:
    rng = random.Random(size)
    for count in range(1, 9):
        for _ in range(5):
            lengths = [rng.randint(1, 30) for _ in range(count)]
            passes = cheapest(lengths, size)
            order = sorted(range(count), key=lambda i: -lengths[i])
            allowed = [
                cut
                for cut in every_cut(order)
                if all(len(some) == 1 or len(some) * lengths[some[0]] <= size for some in cut)
            ]
            assert passes in allowed
            assert cost(passes, lengths) == min(cost(cut, lengths) for cut in allowed)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_sentence_is_in_one_pass(threads: int) -> None:
    rng = random.Random(threads)
    for count in range(60):
        lengths = [rng.randint(1, 90) for _ in range(count)]
        passes = shared(lengths, 128, threads)
        assert sorted(i for some in passes for i in some) == list(range(count))
        assert all(len(p) == 1 or len(p) * max(lengths[i] for i in p) <= 128 for p in passes)


def test_a_few_sentences_keep_all_threads_busy() -> None:
    assert [len(some) for some in shared([10] * 8, 128, 2)] == [4, 4]
    assert sorted(len(some) for some in shared([10] * 9, 128, 2)) == [4, 5]
    assert len(shared([30, 28, 9, 8, 8], 128, 2)) == 2
