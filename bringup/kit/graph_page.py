"""Stories of graphs as one HTML page that needs nothing else: drawings, tables, sources. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from bringup.kit.graph_explain_drawing import graph_svg, hue, memory_svg
from bringup.kit.graph_page_style import SCRIPT, STYLE
from bringup.kit.terminal import readable_bytes, readable_count, readable_seconds

if TYPE_CHECKING:
    from bringup.kit.graph_explain import GraphStory, Reason

#: The page loads nothing, and says so to the browser.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(title: str, stories: Sequence[GraphStory]) -> str:
    """The whole page."""
    links = "".join(f'<a href="#g{n}">{escape(story.title)}</a>' for n, story in enumerate(stories))
    devices = ", ".join(dict.fromkeys(story.device for story in stories))
    body = "".join(_section(story, f"g{n}") for n, story in enumerate(stories))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{STYLE}</style></head>\n'
        f"<body><header><h1>{escape(title)}</h1><p>compiled for {escape(devices)} by bringup</p>"
        f"<nav>{links}</nav></header>\n"
        f"<main>{body}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _section(story: GraphStory, name: str) -> str:
    parts = [
        f'<section id="{name}"><h2>{escape(story.title)}</h2>{_cards(story)}',
        f'<div class="scroll">{graph_svg(story, name)}</div>{_LEGEND}',
        f"<h3>Kernels</h3>{_kernels(story, name)}",
        _reasons("Fused", story.fused),
        _reasons("Not fused", story.refused),
        _ordinary(story, name),
        _memory(story, name),
        f"<details><summary>All {len(story.nodes)} nodes</summary>{_nodes(story)}</details></section>\n",
    ]
    return "".join(parts)


_LEGEND = (
    '<p class="legend"><button class="fit" type="button" hidden>fit to width</button>'
    '<span class="fused">several nodes in one kernel</span><span class="single">one node, one kernel</span>'
    '<span class="op">an ordinary op</span> A tensor is an edge; ← and → name parameters and what leaves the graph. '
    "Point at a box to see its edges, click it to see its kernel.</p>"
)


def _cards(story: GraphStory) -> str:
    launches = len(story.steps) - len(story.ordinary)
    times = [step.seconds for step in story.steps if step.seconds is not None]
    flops = sum(step.flops for step in story.steps)
    moved = sum(step.read + step.written for step in story.steps)
    cards = [
        ("nodes", str(sum(node.fate != "input" for node in story.nodes))),
        ("launches", str(launches)),
        ("kernels", str(len(story.kernels))),
        ("ordinary ops", str(len(story.ordinary))),
        ("flops", readable_count(flops)),
        ("bytes moved", readable_bytes(moved)),
        ("arena", readable_bytes(story.arena)),
        *([("time of all steps", readable_seconds(sum(times)))] if times else []),
    ]
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for what, value in cards)
    return f'<div class="cards">{shown}</div>'


class _Html(str):
    """A cell that is HTML already; other cells are escaped."""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    kinds = [" class=n" if name in numbers else "" for name in columns]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(columns, kinds))
    body = ""
    for row in rows:
        texts = [cell if isinstance(cell, _Html) else escape(cell) for cell in row]
        body += f"<tr>{''.join(f'<td{kind}>{text}</td>' for text, kind in zip(texts, kinds))}</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _kernels(story: GraphStory, name: str) -> str:
    rows = []
    every = sum(step.seconds or 0.0 for step in story.steps)
    for kernel in story.kernels:
        *costs, time, seconds = story.costs(kernel)
        share = f'<i class="share" style="width:{100 * seconds / every:.0f}%"></i>' if time and every else ""
        code = "".join(
            f"<details><summary>{what}</summary><pre>{escape(text)}</pre></details>"
            for what, text in (("IR", kernel.ir), ("source", kernel.source))
            if text
        )
        swatch = f'<i class="swatch" style="--hue:{hue(kernel.number)}"></i>'
        rows.append(
            [
                _Html(f'<span id="{name}-k{kernel.number}">{swatch}{kernel.number}</span>'),
                _Html(f"<b>{escape(kernel.name)}</b>{code}"),
                str(len(kernel.steps)),
                _Html("<br>".join(escape(" + ".join(story.steps[number].nodes)) for number in kernel.steps)),
                *costs,
                _Html(time + share),
            ]
        )
    columns = ("", "kernel", "launches", "nodes", "flops", "bytes", "flops/byte", "time")
    return _table(columns, rows, numbers=(columns[2], *columns[4:]))


def _reasons(title: str, reasons: Sequence[Reason]) -> str:
    if not reasons:
        return ""
    rows = [reason.row(len(reason.pairs)) for reason in reasons]
    return f"<h3>{title}</h3>{_table(('why', 'rule', 'pairs', 'between'), rows, numbers=('pairs',))}"


def _ordinary(story: GraphStory, name: str) -> str:
    if not story.ordinary:
        return ""
    rows = [(", ".join(step.nodes), step.name, step.reason, step.time) for step in story.ordinary]
    table = _table(("node", "op", "why it is not a kernel", "time"), rows, numbers=("time",))
    return f'<h3 id="{name}-ops">No kernels</h3>{table}'


def _memory(story: GraphStory, name: str) -> str:
    if not story.arena:
        return f"<h3>Memory</h3><p>{story.memory()}.</p>"
    caption = f"<p>{story.memory()}. The line shows what is alive at each step, the bound is dashed.</p>"
    return f'<h3>Memory</h3>{caption}<div class="scroll">{memory_svg(story, name)}</div>'


def _nodes(story: GraphStory) -> str:
    rows = [
        (node.name, "" if node.fate == "input" else node.op, node.value, story.becomes(node), node.module)
        for node in story.nodes
    ]
    return _table(("node", "op", "value", "becomes", "module"), rows)
