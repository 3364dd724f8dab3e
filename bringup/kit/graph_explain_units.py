"""Times, sizes, counts and names as people write them."""

from __future__ import annotations


def readable_seconds(seconds: float) -> str:
    """A time.

    >>> readable_seconds(0.0312), readable_seconds(4.2e-6)
    ('31.2 ms', '4.2 µs')
    """
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def readable_bytes(nbytes: float) -> str:
    """A size.

    >>> readable_bytes(512), readable_bytes(16_900), readable_bytes(5 << 20)
    ('512 B', '16.5 KiB', '5.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB"):
        nbytes /= 1024
        if nbytes < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} GiB"


def readable_count(number: float) -> str:
    """A count.

    >>> readable_count(9_500), readable_count(63_488), readable_count(1_580_176)
    ('9,500', '63.5 k', '1.58 M')
    """
    for limit, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if number >= limit:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f}"


def shortened(text: str, most: int) -> str:
    """A long name with its middle left out.

    >>> shortened("native_layer_norm_backward_add_Tensor", 20)
    'native_lay…dd_Tensor'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-(most - half - 1) :]}"
