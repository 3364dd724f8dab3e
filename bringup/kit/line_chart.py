"""A chart of lines as SVG text: both axes logarithmic, or the upright one plain; no library is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#64473a")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 400, 70, 40, 120, 55


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], title: str, x_title: str, y_title: str) -> str:
    """Returns the chart; each line has a name and points (x, y). Points that a logarithm has no place for are left out.

    >>> line_chart({"a": [(1, 2.0), (10, 3.0)]}, "t", "x", "y").count("<polyline")
    1
    """
    kept = {name: [(x, y) for x, y in points if x > 0 and y > 0] for name, points in lines.items() if points}
    xs = [x for points in kept.values() for x, _ in points] or [1.0]
    ys = [y for points in kept.values() for _, y in points] or [1.0]
    left, right = math.log10(min(xs)), math.log10(max(xs))
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + wide * ((math.log10(x) - left) / (right - left) if right > left else 0.5)

    def up(y: float) -> float:
        part = (math.log10(y) - low) / (high - low or 1)
        return _TOP + tall * (1 - part)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{_LEFT + wide / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(x_title)}</text>',
        f'<text transform="translate(16 {_TOP + tall / 2}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>',
    ]
    marks = [10.0**at for at in range(int(low), int(high) + 1)]
    for mark in marks:
        y = up(mark)
        out.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + wide}" y2="{y:.1f}" stroke="#e3e3e0"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:.3g}</text>')
    for mark in sorted(set(xs)):
        x = across(mark)
        out.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_TOP + tall}" stroke="#f1f1ef"/>')
        out.append(f'<text x="{x:.1f}" y="{_TOP + tall + 18}" text-anchor="middle">{mark:g}</text>')
    for number, (name, points) in enumerate(kept.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        key = _TOP + 10 + 18 * number
        out.append(f'<circle cx="{_LEFT + wide + 16}" cy="{key}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{_LEFT + wide + 26}" y="{key + 4}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])
