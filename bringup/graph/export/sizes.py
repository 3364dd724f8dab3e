"""Which sizes a model is lowered for: a lowered graph serves all that answer its guards alike, others need another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

Range = tuple[int, "int | None"]

#: All combinations of sizes are tried up to this many; of more, a sample.
ALL = 4096
#: Of a size without a largest value the sample ends here.
OPEN_END = 1 << 16


def sizes_to_try(ranges: Sequence[Range]) -> list[tuple[int, ...]]:
    """Combinations of sizes within their ranges: all of them, if they are few.

    >>> sizes_to_try([(1, 3)])
    [(1,), (2,), (3,)]
    >>> len(sizes_to_try([(1, 64), (1, 64)])), len(sizes_to_try([(0, None), (2, 9000)])) <= ALL
    (4096, True)
    """
    counts = [OPEN_END if high is None else high - low + 1 for low, high in ranges]
    total = 1
    for count in counts:
        total *= count
    if total <= ALL:
        each = [range(low, low + count) for (low, _), count in zip(ranges, counts)]
        return list(itertools.product(*each))
    most = int(ALL ** (1 / len(ranges)))
    while (most + 1) ** len(ranges) <= ALL:
        most += 1
    return list(itertools.product(*(sample(low, high, most) for low, high in ranges)))


def sample(low: int, high: int | None, most: int) -> list[int]:
    """Sizes where kernels change their ways: both ends, small ones, powers of two, and those beside them.

    >>> sample(1, 100, 12)
    [1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 99, 100]
    """
    end = max(low, OPEN_END) if high is None else high
    if end - low < most:
        return list(range(low, end + 1))
    powers = [1 << n for n in range(64) if low <= 1 << n <= end]
    ranked = [low, end, low + 1, end - 1, low + 2, *powers]
    ranked += [n for power in powers for n in (power - 1, power + 1) if low <= n <= end]
    ranked += range(low, min(end, low + most))
    return sorted(list(dict.fromkeys(ranked))[:most])
