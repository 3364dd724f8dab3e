"""A graph's story as SVG: the steps as boxes with their nodes inside, tensors as edges; the arena over time.

Colours come from the page's style sheet: a step has the hue of its kernel, as ``--hue``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from bringup.kit.graph_explain_layout import Box, Edge, layered
from bringup.kit.terminal import readable_bytes, readable_count, readable_seconds, shortened

if TYPE_CHECKING:
    from bringup.graph.fusion.steps import Memory
    from bringup.kit.graph_explain import GraphStory, NodeStory, StepStory, TensorStory

_CHARACTER = 6.65  # of the 11 px monospace font
_PADDING, _LINE, _HEAD, _NODE, _NODE_GAP = 10.0, 15.0, 40.0, 34.0, 8.0
_NAME = 40  # characters of a name
_MOST_PILLS = 12  # more inputs than this are named in their readers' boxes
_MARGIN = 16.0


def hue(number: int) -> int:
    """The colour of a kernel: neighbours are far apart.

    >>> hue(0), hue(1)
    (210, 347)
    """
    return int(210 + number * 137.5) % 360


@dataclass
class _Part:
    """A box with its SVG, drawn at the origin; ``ports`` says where edges leave that do not leave from the middle."""

    box: Box
    svg: str
    key: str
    ports: dict[Memory, float] = field(default_factory=dict)

    def port(self, memory: Memory) -> float:
        return self.ports.get(memory, self.box.width / 2)


def graph_svg(story: GraphStory, name: str) -> str:
    """The drawing of a graph; ``name`` tells it apart from others on the page."""
    return _Drawing(story, name).svg()


class _Drawing:
    def __init__(self, story: GraphStory, name: str) -> None:
        self._story, self._name = story, name
        self._nodes = {node.name: node for node in story.nodes if node.fate != "input"}
        given = [m for m, tensor in story.tensors.items() if tensor.kind in ("input", "gradient") and self._read(m)]
        #: Inputs with a box of their own.
        self._pills = given if len(given) <= _MOST_PILLS else []
        self._results = [m for m, tensor in story.tensors.items() if "result" in tensor.leaves_as and self._written(m)]

    def _read(self, memory: Memory) -> bool:
        return any(memory in step.reads for step in self._story.steps)

    def _written(self, memory: Memory) -> bool:
        return any(memory in step.writes for step in self._story.steps)

    def svg(self) -> str:
        """Everything."""
        story = self._story
        links = self._links()
        parts = [_pill(story.tensors[m], f"in{n}") for n, m in enumerate(self._pills)]
        parts += [self._step(step, self._leaving(step, links)) for step in story.steps]
        parts += [_pill(story.tensors[m], f"out{n}", "result") for n, m in enumerate(self._results)]
        boxes = [part.box for part in parts]
        first = layered(boxes, self._edges(parts, links, [0.0] * len(links)))
        # Edges enter a box in the order in which they come: no two cross right above it.
        layout = layered(boxes, self._edges(parts, links, [route[-2][0] for route in first.routes]))
        width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
        shown = [self._edge(parts, links[n], layout.routes[n]) for n in range(len(links))]
        shown += self._labels(parts, links, layout.corners)
        for part, (x, y) in zip(parts, layout.corners):
            shown.append(f'<g transform="translate({x + _MARGIN:.1f} {y + _MARGIN:.1f})">{part.svg}</g>')
        return (
            f'<svg class="graph" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'role="img" aria-label="{escape(story.title)} graph">'
            f'<defs><marker id="{self._name}-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>{"".join(shown)}</svg>'
        )

    # ---- who gives what to whom ----

    def _links(self) -> list[tuple[int, int, Memory]]:
        """(from, to, memory), as numbers of boxes: inputs first, then steps, then results."""
        steps, first = self._story.steps, len(self._pills)
        found: dict[tuple[int, int, Memory], None] = {}
        for step in steps:
            for memory in step.reads:
                for writer in _writers(steps, memory, step.number):
                    found[first + writer, first + step.number, memory] = None
                if memory in self._pills and not _writers(steps, memory, step.number):
                    found[self._pills.index(memory), first + step.number, memory] = None
        for n, memory in enumerate(self._results):
            for writer in _writers(steps, memory, len(steps)):
                found[first + writer, first + len(steps) + n, memory] = None
        return list(found)

    def _leaving(self, step: StepStory, links: Sequence[tuple[int, int, Memory]]) -> list[Memory]:
        """The allocations that edges carry away from a step."""
        number = len(self._pills) + step.number
        return list(dict.fromkeys(memory for source, _, memory in links if source == number))

    def _edges(
        self, parts: Sequence[_Part], links: Sequence[tuple[int, int, Memory]], comes_from: Sequence[float]
    ) -> list[Edge]:
        """``comes_from``: where each edge is before it enters its last box."""
        entering: dict[int, dict[tuple[int, Memory], float]] = {}
        for (source, target, memory), x in zip(links, comes_from):
            entering.setdefault(target, {})[source, memory] = x
        edges = []
        for source, target, memory in links:
            places = entering[target]
            rank = sorted(places, key=lambda one: places[one]).index((source, memory))
            port = parts[target].box.width * (rank + 1) / (len(places) + 1)
            edges.append(Edge(source, target, parts[source].port(memory), port))
        return edges

    # ---- drawn ----

    def _edge(self, parts: Sequence[_Part], link: tuple[int, int, Memory], route: Sequence[tuple[float, float]]) -> str:
        source, target, memory = link
        points = [(x + _MARGIN, y + _MARGIN) for x, y in route]
        words = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
        for n in range(1, len(points)):
            (x0, y0), (x1, y1) = points[n - 1], points[n]
            bend = 0.0 if n % 2 else 0.5 * (y1 - y0)  # every second part runs straight past a layer
            words.append(f"C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}")
        ends = f'data-from="{self._name}-{parts[source].key}" data-to="{self._name}-{parts[target].key}"'
        curve = f'd="{" ".join(words)}" marker-end="url(#{self._name}-tip)"'
        title = _title(_tensor_text(self._story.tensors[memory]))
        return f'<path class="edge" {ends} {curve}>{title}</path>'

    def _labels(
        self,
        parts: Sequence[_Part],
        links: Sequence[tuple[int, int, Memory]],
        corners: Sequence[tuple[float, float]],
    ) -> list[str]:
        """What each edge carries, once where it begins; an input's box says so itself."""
        shown = []
        for source, memory in dict.fromkeys((source, memory) for source, _, memory in links):
            if source >= len(self._pills):
                x, y = corners[source]
                x, y = x + parts[source].port(memory) + _MARGIN + 4, y + parts[source].box.height + _MARGIN + 13
                shown.append(_text(x, y, self._story.tensors[memory].value, "label"))
        return shown

    def _step(self, step: StepStory, leaving: Sequence[Memory]) -> _Part:
        """A kernel, or an ordinary op, with its nodes in it."""
        tensors = self._story.tensors
        nodes = [self._nodes[name] for name in step.nodes if name in self._nodes]
        given = [m for m in step.reads if m[0] == "tensor" and m not in self._pills]
        beside = [m for m in given if not _writers(self._story.steps, m, step.number)]
        head = f"{step.number} · {shortened(step.name, _NAME)}"
        enters = [("← ", tensors[m].name, tensors[m].value) for m in beside]
        leaves = []
        for memory in step.writes:
            words = _leaving_words(tensors[memory], memory in self._results)
            leaves += [("→ ", word, tensors[memory].value) for word in words]
        rows = [(mark, shortened(name, _NAME), value) for mark, name, value in enters + leaves]
        lines = [len(mark + name) + len(value) + 2 for mark, name, value in rows]
        lines += [len(_node_lines(node)[n]) + (len(node.value) + 2) * (1 - n) + 3 for node in nodes for n in (0, 1)]
        lines += [len(head) + 2, len(_cost_text(step))]
        slots = [len(tensors[m].value) * _CHARACTER + 12 for m in leaving]
        width = max(140.0, max(lines) * _CHARACTER + 2 * _PADDING, sum(slots))
        inside = [_head(step, head)]
        y = _HEAD
        for row in rows[: len(enters)]:
            y += _LINE
            inside.append(_row(row, y, width))
        y += 6
        ends: dict[str, tuple[float, float]] = {}
        for node in nodes:
            ends[node.name] = (y, y + _node_height(node))
            inside.append(_node_svg(node, y, width))
            y += _node_height(node) + _NODE_GAP
        inside += _inner_edges(nodes, ends, width)
        y -= _NODE_GAP - 2
        for row in rows[len(enters) :]:
            y += _LINE
            inside.append(_row(row, y, width))
        height = y + _PADDING
        kind = "op" if step.kernel is None else "fused" if len(nodes) > 1 else "single"
        link = f"{self._name}-k{step.kernel}" if step.kernel is not None else f"{self._name}-ops"
        shape = f'<rect class="frame" width="{width:.1f}" height="{height:.1f}" rx="8"/>'
        svg = (
            f'<a href="#{link}"><g class="step {kind}" data-key="{self._name}-s{step.number}" '
            f'style="--hue:{hue(step.kernel or 0)}">{shape}{"".join(inside)}</g></a>'
        )
        ports, x = {}, (width - sum(slots)) / 2
        for memory, slot in zip(leaving, slots) if len(leaving) > 1 else ():
            ports[memory] = x + 8
            x += slot
        return _Part(Box(width, height), svg, f"s{step.number}", ports)


def _writers(steps: Sequence[StepStory], memory: Memory, before: int) -> list[int]:
    """The steps whose values an allocation holds then: back to one that began with what was there."""
    found = []
    for step in reversed(steps[:before]):
        if memory in step.writes:
            found.append(step.number)
            if memory in step.reads:
                break
    return found


def _pill(tensor: TensorStory, key: str, words: str = "") -> _Part:
    text = f"{shortened(words or tensor.name, _NAME)}  {tensor.value}"
    width = len(text) * _CHARACTER + 24
    inside = _text(width / 2, 16, text, "", "middle") + _title(_tensor_text(tensor))
    svg = f'<g class="pill"><rect width="{width:.1f}" height="24" rx="12"/>{inside}</g>'
    return _Part(Box(width, 24.0), svg, key)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _title(text: str) -> str:
    """What the browser shows while one points at something."""
    return f"<title>{escape(text)}</title>"


def _head(step: StepStory, head: str) -> str:
    title = _title(f"{step.name}: {', '.join(step.nodes)}")
    return title + _text(_PADDING, 18, head, "head") + _text(_PADDING, 33, _cost_text(step), "cost")


def _cost_text(step: StepStory) -> str:
    time = [] if step.seconds is None else [readable_seconds(step.seconds)]
    if step.kernel is None:
        return " · ".join(["ordinary op", *time])
    return " · ".join([f"{readable_count(step.flops)} flops", readable_bytes(step.read + step.written), *time])


def _row(row: tuple[str, str, str], y: float, width: float) -> str:
    mark, name, value = row
    return _text(_PADDING, y - 3, mark + name, "row") + _text(width - _PADDING, y - 3, value, "row", "end")


def _node_lines(node: NodeStory) -> tuple[str, str]:
    names = [shortened(node.name, _NAME)] if node.name != node.op else []
    names += [f"in {shortened(node.module, _NAME)}"] if node.module else []
    return shortened(node.op, _NAME), " ".join(names)


def _node_height(node: NodeStory) -> float:
    return _NODE if _node_lines(node)[1] else _NODE - 12


def _node_svg(node: NodeStory, y: float, width: float) -> str:
    op, names = _node_lines(node)
    inner = width - 2 * _PADDING
    lines = _text(7, 14, op, "op") + _text(inner - 7, 14, node.value, "value", "end") + _text(7, 27, names, "name")
    frame = f'<rect width="{inner:.1f}" height="{_node_height(node)}" rx="5"/>'
    return (
        f'<g class="node" transform="translate({_PADDING} {y:.1f})">{frame}'
        f"{lines}{_title(f'{node.name}: {node.op} {node.value}')}</g>"
    )


def _inner_edges(nodes: Sequence[NodeStory], ends: Mapping[str, tuple[float, float]], width: float) -> list[str]:
    """Lines between the nodes of one kernel: straight to the next one, around the others."""
    order = {node.name: n for n, node in enumerate(nodes)}
    shown = []
    for node in nodes:
        for given in node.inputs:
            if given in order and order[given] < order[node.name]:
                start, end = ends[given][1], ends[node.name][0]
                if order[node.name] - order[given] == 1:
                    path = f"M{width / 2:.1f} {start:.1f}V{end:.1f}"
                else:
                    x, bend = width - _PADDING, width - 1
                    path = f"M{x:.1f} {start - 8:.1f}C{bend:.1f} {start:.1f} {bend:.1f} {end:.1f} {x:.1f} {end + 8:.1f}"
                shown.append(f'<path class="inner" d="{path}"/>')
    return shown


def _leaving_words(tensor: TensorStory, drawn: bool) -> list[str]:
    """What the step's box says about a tensor that leaves the graph."""
    words = dict.fromkeys(word for word in tensor.leaves_as if not (drawn and word == "result"))
    short = {"saved for backward": f"saved {tensor.name}", "written in place": f"writes {tensor.name}"}
    return [short.get(word, word) for word in words]


def _tensor_text(tensor: TensorStory) -> str:
    place = f", arena at {tensor.offset:,}" if tensor.offset is not None else f", {tensor.kind}"
    return f"{tensor.name}: {tensor.value}, {readable_bytes(tensor.nbytes)}{place}"


# ---- memory ----
_LEFT, _TOP, _HEIGHT = 78.0, 14.0, 230.0  # of the plot


def memory_svg(story: GraphStory, name: str) -> str:
    """The arena as time × bytes: a rectangle for each temporary, and the bytes that are alive."""
    steps, arena = len(story.steps), story.arena
    column = min(64.0, max(7.0, 860.0 / max(steps, 1)))
    right = _LEFT + steps * column

    def y(nbytes: float) -> float:
        return _TOP + _HEIGHT - nbytes / arena * _HEIGHT

    shown = [f'<rect class="plot" x="{_LEFT}" y="{_TOP}" width="{steps * column:.1f}" height="{_HEIGHT}"/>']
    for tensor in story.in_arena:
        assert tensor.offset is not None
        x, width = _LEFT + tensor.first * column, (tensor.last - tensor.first + 1) * column
        height = max(tensor.nbytes / arena * _HEIGHT, 1.0)
        place = f'x="{x + 0.5:.1f}" y="{y(tensor.offset) - height:.1f}" width="{width - 1:.1f}" height="{height:.1f}"'
        fits = int((width - 8) / _CHARACTER) if height >= 13 else 0
        label = _text(x + 4, y(tensor.offset) - height / 2 + 4, shortened(tensor.name, fits)) if fits >= 4 else ""
        title = _title(f"{_tensor_text(tensor)}, steps {tensor.first} to {tensor.last}")
        made = hue(story.steps[tensor.first].kernel or 0)
        shown.append(f'<g class="life" style="--hue:{made}"><rect {place} rx="2"/>{label}{title}</g>')
    line = []
    for n, alive in enumerate(story.alive()):
        line += [f"{_LEFT + n * column:.1f},{y(alive):.1f}", f"{_LEFT + (n + 1) * column:.1f},{y(alive):.1f}"]
    bound = f'{y(story.bound):.1f}"'
    shown.append(f'<polyline class="alive" points="{" ".join(line)}">{_title("bytes alive")}</polyline>')
    shown.append(f'<line class="bound" x1="{_LEFT}" x2="{right:.1f}" y1="{bound} y2="{bound}/>')
    shown += [
        _text(_LEFT - 6, y(nbytes) + 4, readable_bytes(nbytes), "axis", "end") for nbytes in (0, arena / 2, arena)
    ]
    under = _TOP + _HEIGHT + 15
    for n in range(0, steps, max(1, round(34 / column))):
        shown.append(_text(_LEFT + (n + 0.5) * column, under, str(n), "axis", "middle"))
    shown.append(_text((_LEFT + right) / 2, under + 16, "step", "axis", "middle"))
    size = f'width="{right + 12:.0f}" height="{under + 23:.0f}" viewBox="0 0 {right + 12:.0f} {under + 23:.0f}"'
    about = escape(f"memory of {story.title}")
    return f'<svg class="memory" id="{name}-memory" {size} role="img" aria-label="{about}">{"".join(shown)}</svg>'
