"""Cost matrices that are hard to solve exactly."""

import numpy as np


def hard_matrices(kind: str, rng: np.random.Generator, batch: int, n: int) -> np.ndarray:
    cost = rng.normal(size=(batch, n, n))
    if kind == "ties":
        return np.round(cost)
    if kind == "all equal":
        return np.zeros_like(cost)
    if kind == "repeated columns" and n:
        return cost[:, :, rng.integers(0, n, size=n)]
    if kind == "huge range":
        return cost * 10.0 ** rng.uniform(-9, 9, size=cost.shape)
    if kind == "near duplicates" and n:
        return cost[:, :, rng.integers(0, n, size=n)] + 1e-6 * cost
    if kind == "like a model" and n:
        return cost - 4 * np.eye(n)[rng.permutation(n)]
    return cost


KINDS = [
    "random", "ties", "all equal", "repeated columns", "huge range", "near duplicates",
    "like a model",
]  # fmt: skip
