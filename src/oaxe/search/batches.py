"""Sentences that are decoded together: those of similar length."""

from collections.abc import Iterator, Sequence


def batches(lengths: Sequence[int], max_tokens: int | None) -> Iterator[list[int]]:
    """Indices of all sentences that are not empty, in batches of similar length, longest first.

    A batch has at most ``max_tokens`` with its padding, if that is a number, or is a single
    sentence. The longest come first, so that memory runs out at once or never.

    Example:
        >>> list(batches([2, 9, 0, 3, 2], 6))
        [[1], [3, 0], [4]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] == 0:
            break
        if batch and max_tokens and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
