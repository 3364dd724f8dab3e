"""Small plots as SVG text: lines over a common axis, and bars in groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 48
COLORS = ("#1b6ca8", "#d1603d", "#3d8b5f", "#8a4fa3")


def _text(x: float, y: float, words: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(words)}</text>'


def _frame(title: str, body: list[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="12">'
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, back, _text(WIDTH / 2, 20, title, extra='font-size="14"'), *body, "</svg>", ""])


def _legend(names: Sequence[str], x: float, y: float) -> list[str]:
    parts = []
    for i, name in enumerate(names):
        parts.append(f'<rect x="{x}" y="{y + 16 * i - 9}" width="10" height="10" fill="{COLORS[i % len(COLORS)]}"/>')
        parts.append(_text(x + 15, y + 16 * i, name, "start"))
    return parts


def _number(value: float) -> str:
    return f"{value:g}" if value < 10000 else f"{value:.0e}"


def lines(
    title: str,
    x_name: str,
    y_name: str,
    xs: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    log: bool = False,
    points: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Lines over ``xs``; ``log`` scales both axes; ``points`` are single named (x, y)."""
    marks = list((points or {}).values())
    every_y = [y for ys in series.values() for y in ys] + [y for _, y in marks]
    every_x = [*xs, *(x for x, _ in marks)]
    scale = math.log10 if log else float
    x_low, x_high = (scale(min(every_x)), scale(max(every_x))) if log else (0.0, float(max(every_x)))
    y_low, y_high = (scale(min(every_y)), scale(max(every_y))) if log else (0.0, float(max(every_y)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (scale(x) - x_low) / (x_high - x_low or 1)
        up = (scale(y) - y_low) / (y_high - y_low or 1)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    body = [f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="black"/>']
    for x in xs:
        body.append(_text(place(x, max(every_y))[0], HEIGHT - BOTTOM + 16, _number(x)))
    steps = range(5)
    for step in steps:
        y = y_low + (y_high - y_low) * step / 4
        value = 10**y if log else y
        body.append(_text(LEFT - 6, place(xs[0], value)[1] + 4, _number(float(f"{value:.2g}")), "end"))
    for i, ys in enumerate(series.values()):
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(x, y) for x, y in zip(xs, ys)))
        body.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="2"/>')
    for name, (x, y) in (points or {}).items():
        px, py = place(x, y)
        body.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{COLORS[1]}"/>')
        body.append(_text(px, py + 15, name, extra='font-size="10"'))
    body += _legend(list(series), LEFT + 12, TOP + 12) if not points else []
    body.append(_text(WIDTH / 2, HEIGHT - 10, x_name))
    body.append(_text(14, HEIGHT / 2, y_name, extra=f'transform="rotate(-90 14 {HEIGHT / 2})"'))
    return _frame(title, body)


def bars(title: str, y_name: str, names: Sequence[str], groups: Mapping[str, Sequence[float]]) -> str:
    """A group of bars, one per name, for each key."""
    high = max(value for values in groups.values() for value in values)
    body = [f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="black"/>']
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    for step in range(5):
        y = HEIGHT - BOTTOM - step / 4 * (HEIGHT - TOP - BOTTOM)
        body.append(_text(LEFT - 6, y + 4, f"{high * step / 4:.0f}", "end"))
    for g, (key, values) in enumerate(groups.items()):
        wide = room * 0.8 / len(values)
        for i, value in enumerate(values):
            tall = value / high * (HEIGHT - TOP - BOTTOM)
            x = LEFT + g * room + room * 0.1 + i * wide
            body.append(
                f'<rect x="{x:.1f}" y="{HEIGHT - BOTTOM - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
                f'fill="{COLORS[i % len(COLORS)]}"/>'
            )
        body.append(_text(LEFT + (g + 0.5) * room, HEIGHT - BOTTOM + 14, key, extra='font-size="9"'))
    body += _legend(names, WIDTH - 270, TOP + 8)
    body.append(_text(14, HEIGHT / 2, y_name, extra=f'transform="rotate(-90 14 {HEIGHT / 2})"'))
    return _frame(title, body)
