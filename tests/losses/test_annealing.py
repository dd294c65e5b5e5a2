import pytest

import oaxe


@pytest.mark.parametrize(
    ("epoch", "total", "expected"),
    [
        (0, 20, 1.0),  # 1 - 16^-19
        (18, 20, 1 - 1 / 16),
        (18.5, 20, 1 - 1 / 4),
        (19, 20, 0.0),  # lambda M
        (20, 20, 0.0),
        (100_000, 100_000, 0.0),  # 16^5000 must not overflow
    ],
)
def test_schedule_of_the_paper(epoch: float, total: float, expected: float) -> None:
    assert oaxe.annealed_weight(epoch, total) == pytest.approx(expected)


def test_other_constants() -> None:
    assert oaxe.annealed_weight(3, 10, c=2, lam=0.5) == pytest.approx(0.75)


@pytest.mark.parametrize("bad", [{"total_epochs": 0}, {"c": 1.0}, {"lam": 1.5}])
def test_rejects_impossible_constants(bad: dict[str, float]) -> None:
    options = {"epoch": 1, "total_epochs": 10} | bad
    with pytest.raises(ValueError, match="annealed_weight needs"):
        oaxe.annealed_weight(**options)
