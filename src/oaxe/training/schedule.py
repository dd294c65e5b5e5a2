"""Learning rate: linear warm-up, then inverse square root or linear decay."""

START = 1e-7  # before the first update


def learning_rate(step: int, *, peak: float, warmup: int, last: int | None = None) -> float:
    """The rate of update ``step``, counted from 1.

    Args:
        peak: the rate at the end of the warm-up.
        last: None for inverse square root decay; or the last update, after which the rate of linear
            decay is zero.

    Example:
        >>> [round(learning_rate(s, peak=4e-4, warmup=100), 6) for s in (1, 50, 100, 400, 1600)]
        [4e-06, 0.0002, 0.0004, 0.0002, 0.0001]
        >>> [round(learning_rate(s, peak=4e-4, warmup=100, last=499), 6) for s in (100, 300, 499)]
        [0.0004, 0.0002, 1e-06]
    """
    if step < warmup:
        return START + (peak - START) * step / warmup
    if last is None:
        return float(peak * (max(warmup, 1) / step) ** 0.5)
    return peak * max(last + 1 - step, 0) / max(last + 1 - warmup, 1)
