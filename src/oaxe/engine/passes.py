"""Which sentences of a batch share a pass of the network.

A pass takes time of its own, and padding takes that of real tokens: so sentences of similar length
share one, as many as cost least together.
"""

from collections.abc import Sequence

PASS = 20  # tokens whose padding takes as long as a pass does besides its tokens, about 1.5 ms


def shared(lengths: Sequence[int], at_once: int, threads: int) -> list[list[int]]:
    """Indices of the sentences of each pass; where they are few, a multiple of the threads.

    Example:
        >>> shared([12, 11, 10, 9], 128, 2), shared([9, 9], 128, 1)
        ([[0, 1], [2, 3]], [[0, 1]])
    """
    size = max(1, min(at_once, -(-sum(lengths) // threads)))
    passes = cheapest(lengths, size)
    while len(passes) % threads and len(passes) > threads and size < at_once:
        size = min(at_once, size + size // 8 + 1)  # padding took more than that
        passes = cheapest(lengths, size)
    return passes


def cheapest(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Passes of at most ``size`` tokens with padding, or of one sentence; longest first.

    Each is worth PASS tokens; the sum of all is the smallest that sentences in order of their
    length can have.

    Example:
        >>> cheapest([40, 3, 4, 41], 128), cheapest([9, 3, 4, 8], 128)
        ([[3, 0], [2, 1]], [[0, 3, 2, 1]])
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    costs, begins = [0], list[int]()  # of the first sentences: tokens, where the last pass begins
    for end in range(1, len(order) + 1):
        begin = end - 1
        best = costs[begin] + lengths[order[begin]], begin
        for begin in range(end - 2, -1, -1):
            tokens = lengths[order[begin]] * (end - begin)
            if tokens > size:
                break
            best = min(best, (costs[begin] + tokens, begin))
        costs.append(best[0] + PASS)
        begins.append(best[1])
    passes, end = list[list[int]](), len(order)
    while end:
        begin = begins[end - 1]
        passes.append(order[begin:end])
        end = begin
    return passes[::-1]
