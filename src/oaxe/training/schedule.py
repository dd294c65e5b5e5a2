"""Learning rate: linear warm-up, then inverse square root decay."""


def learning_rate(step: int, *, peak: float, warmup: int, start: float = 1e-7) -> float:
    """The rate of update ``step``, counted from 1.

    >>> [round(learning_rate(s, peak=4e-4, warmup=100), 6) for s in (1, 50, 100, 400, 1600)]
    [4e-06, 0.0002, 0.0004, 0.0002, 0.0001]
    """
    if step < warmup:
        return start + (peak - start) * step / warmup
    return float(peak * (max(warmup, 1) / step) ** 0.5)
