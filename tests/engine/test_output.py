"""The output layer in int8: the same words on every path, as whole numbers say."""

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from oaxe.engine import output
from oaxe.engine.graph import quantised
from oaxe.engine.output import (
    LARGEST,
    MIDDLE,
    REACH,
    FloatOutput,
    Int8Output,
    compute_alone,
    pack,
    quantised_states,
    unpack,
)

PATHS = output.paths()


def exact(
    rounded: NDArray[np.int8], scale: NDArray[np.float32], hidden: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Logits by int32 products."""
    states, row_scale = quantised_states(hidden)
    products = (states.astype(np.int32) - MIDDLE) @ rounded.astype(np.int32).T
    logits: NDArray[np.float32] = products.astype(np.float32) * scale * row_scale[:, None]
    return logits


def random_table(
    rng: np.random.Generator, vocab: int, dim: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    rounded = rng.integers(-LARGEST, LARGEST + 1, (vocab, dim)).astype(np.int8)
    return rounded, rng.uniform(0.001, 0.004, vocab).astype(np.float32)


def of(
    rounded: NDArray[np.int8], scale: NDArray[np.float32], threads: int, path: str
) -> Int8Output:
    return Int8Output(pack(rounded), scale, rounded.sum(1, dtype=np.int32), threads, path)


@pytest.fixture(autouse=True)
def _share_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share work however small."""
    monkeypatch.setattr("oaxe.engine.output.ENOUGH", 1)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("vocab", "dim", "positions"),
    [(1, 4, 1), (63, 8, 3), (64, 32, 4), (65, 12, 5), (1000, 64, 9), (300, 512, 18), (200, 64, 0)],
)
def test_finds_the_maximum_of_exact_products(
    path: str, threads: int, vocab: int, dim: int, positions: int
) -> None:
    rng = np.random.default_rng(vocab)
    rounded, scale = random_table(rng, vocab, dim)
    hidden = rng.standard_normal((positions, dim)).astype(np.float32)
    logits = exact(rounded, scale, hidden)
    for never in ([], [i for i in (0, 1, 2, 3, 5, 6, 64) if i < vocab - 1]):
        words, log_probs = of(rounded, scale, threads, path).likeliest(hidden, never)
        allowed = logits.astype(np.float64)
        allowed[:, never] = -np.inf
        assert words.tolist() == allowed.argmax(1).tolist()
        top = allowed.max(1)
        expected = -np.log(np.exp(allowed - top[:, None]).sum(1))
        np.testing.assert_allclose(log_probs, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("path", PATHS)
def test_the_largest_numbers_do_not_overflow(path: str) -> None:
    """Every state and every weight at its limit, of either sign."""
    dim = 2048
    rounded = np.full((70, dim), LARGEST, np.int8)
    rounded[::2] = -LARGEST
    rounded[7, : dim // 2] = -LARGEST
    scale = np.full(70, 1e-6, np.float32)
    signs = np.where(np.arange(dim) < dim // 2, 1, -1).astype(np.float32)
    hidden = np.stack([np.ones(dim, np.float32), -np.ones(dim, np.float32), signs, -signs])
    states, _ = quantised_states(hidden)
    assert {*states.flatten().tolist()} == {MIDDLE - REACH, MIDDLE + REACH}
    found, _ = of(rounded, scale, 1, path).likeliest(hidden, [])
    assert found.tolist() == exact(rounded, scale, hidden).argmax(1).tolist() == [1, 0, 0, 7]


@pytest.mark.parametrize("path", PATHS)
def test_the_first_of_equal_words_wins_and_forbidden_ones_never_do(path: str) -> None:
    rounded = np.zeros((130, 8), np.int8)
    rounded[[3, 66, 129]] = 5
    scale = np.ones(130, np.float32)
    hidden = np.ones((2, 8), np.float32)
    for threads in (1, 2, 3):
        layer = of(rounded, scale, threads, path)
        for never, first in (([], 3), ([3], 66), ([3, 66], 129)):
            assert layer.likeliest(hidden, never)[0].tolist() == [first, first]
        words, log_probs = layer.likeliest(-hidden, list(range(100)))
        assert words.tolist() == [100, 100]
        assert log_probs == pytest.approx(-np.log(29), abs=1e-5)


def test_a_state_of_zeros_and_very_sharp_distributions() -> None:
    rng = np.random.default_rng(0)
    rounded, scale = random_table(rng, 100, 16)
    hidden = np.zeros((2, 16), np.float32)
    hidden[1] = 1e4 * rng.standard_normal(16)
    for path in PATHS:
        words, log_probs = of(rounded, scale, 1, path).likeliest(hidden, [0])
        assert words[0] == 1
        assert log_probs[0] == pytest.approx(-np.log(99), abs=1e-5)
        assert log_probs[1] == pytest.approx(0, abs=1e-6)


def test_int8_is_close_to_float32() -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((500, 256)).astype(np.float32)
    hidden = rng.standard_normal((200, 256)).astype(np.float32)
    rounded, scale = quantised(weight, LARGEST)
    layer, plain = of(rounded, scale, 1, PATHS[-1]), FloatOutput(weight)
    words, log_probs = layer.likeliest(hidden, [0, 1])
    expected, expected_log_probs = plain.likeliest(hidden, [0, 1])
    assert (words == expected).mean() > 0.95
    assert np.abs(log_probs - expected_log_probs).max() < 1.0
    tokens = np.array([[0, 499], [17, 3]])
    assert np.abs(layer.embed(tokens) - plain.embed(tokens)).max() < 0.02
    assert np.array_equal(unpack(pack(rounded))[:500], rounded)


def test_without_the_compiled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_output", None)
    assert output.paths() == ["numpy"]


@pytest.mark.skipif(PATHS[0] == "numpy", reason="numpy has threads of its own")
def test_a_thread_with_a_pass_of_its_own_shares_no_layer() -> None:
    rng = np.random.default_rng(6)
    layer = of(*random_table(rng, 200, 32), 2, PATHS[0])
    hidden = rng.normal(size=(9, 32)).astype(np.float32)
    with (
        ThreadPoolExecutor(1, initializer=compute_alone) as passes,
        mock.patch.object(layer, "_pool", wraps=layer._pool) as pool,
    ):
        words, log_probs = passes.submit(layer.likeliest, hidden, [1]).result(20)
        assert not pool.map.called
        both_words, both_log_probs = layer.likeliest(hidden, [1])
        assert pool.map.called
    np.testing.assert_array_equal(words, both_words)
    np.testing.assert_allclose(log_probs, both_log_probs, atol=1e-5)
