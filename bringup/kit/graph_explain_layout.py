"""Where the boxes of a drawn graph go: layers from top to bottom, few crossings, edges as straight as they can be.

After Sugiyama: longest paths give the layers, long edges get a place in every layer they pass, sweeps by the mean of
the neighbours order each layer, and boxes move as near to their neighbours as the order allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_GAP = 28.0  # between boxes of a layer
_LAYER_GAP = 58.0  # between layers: a label and a curve
_LANE = 10.0  # of an edge that passes a layer
_SWEEPS = 12
_MOVES = 80


@dataclass(frozen=True)
class Box:
    """What is placed."""

    width: float
    height: float


@dataclass(frozen=True)
class Edge:
    """From one box to a later one; the ports are distances from the boxes' left sides."""

    source: int
    target: int
    source_port: float
    target_port: float


@dataclass(frozen=True)
class Layout:
    """Upper left corners of the boxes, the points that each edge passes, and the whole size.

    An edge runs straight down past the rest of a layer, then to a place in the next one, in turns.
    """

    corners: Sequence[tuple[float, float]]
    routes: Sequence[Sequence[tuple[float, float]]]
    width: float
    height: float


@dataclass
class _Vertex:
    """A box, or the place of a long edge in a layer it passes."""

    layer: int
    width: float
    x: float = 0.0  # left side
    #: (vertex, port there, port here)
    above: list[tuple[_Vertex, float, float]] = field(default_factory=list)
    below: list[tuple[_Vertex, float, float]] = field(default_factory=list)
    place: int = 0
    lane: bool = False


def layered(boxes: Sequence[Box], edges: Sequence[Edge]) -> Layout:
    """Places boxes whose edges all go from an earlier to a later one.

    >>> found = layered([Box(40, 20), Box(40, 20)], [Edge(0, 1, 20, 20)])
    >>> found.corners, found.routes
    ([(0.0, 0.0), (0.0, 78.0)], [[(20.0, 20.0), (20.0, 20.0), (20.0, 78.0)]])
    """
    if not boxes:
        return Layout([], [], 0.0, 0.0)
    levels = _levels(boxes, edges)
    vertices = [_Vertex(level, box.width) for level, box in zip(levels, boxes)]
    layers: list[list[_Vertex]] = [[] for _ in range(max(levels) + 1)]
    for vertex in vertices:
        layers[vertex.layer].append(vertex)
    lanes = [_threaded(edge, vertices, layers) for edge in edges]
    _order(layers)
    _settle(layers)
    left = min(vertex.x for layer in layers for vertex in layer)
    heights = [0.0] * len(layers)
    for box, level in zip(boxes, levels):
        heights[level] = max(heights[level], box.height)
    tops = [sum(heights[:n]) + n * _LAYER_GAP for n in range(len(layers))]
    led_to = {edge.target for edge in edges}
    corners = []
    for number, (vertex, box) in enumerate(zip(vertices, boxes)):
        # What nothing leads to stands as near to its readers as its layer allows.
        lower = 0.0 if number in led_to or not vertex.below else heights[vertex.layer] - box.height
        corners.append((vertex.x - left, tops[vertex.layer] + lower))
    routes = []
    for edge, passed in zip(edges, lanes):
        x, level = corners[edge.source][0] + edge.source_port, levels[edge.source]
        points = [(x, corners[edge.source][1] + boxes[edge.source].height), (x, tops[level] + heights[level])]
        for lane in passed:
            x = lane.x - left + _LANE / 2
            points += [(x, tops[lane.layer]), (x, tops[lane.layer] + heights[lane.layer])]
        routes.append([*points, (corners[edge.target][0] + edge.target_port, corners[edge.target][1])])
    width = max(vertex.x + vertex.width for layer in layers for vertex in layer) - left
    return Layout(corners, routes, width, tops[-1] + heights[-1])


def _levels(boxes: Sequence[Box], edges: Sequence[Edge]) -> list[int]:
    """Longest paths from above; what nothing leads to stands right above its first reader, and a box without edges
    where there is most room."""
    levels = [0] * len(boxes)
    for edge in sorted(edges, key=lambda edge: edge.target):
        levels[edge.target] = max(levels[edge.target], levels[edge.source] + 1)
    led_to = {edge.target for edge in edges}
    for source in {edge.source for edge in edges} - led_to:
        levels[source] = min(levels[edge.target] for edge in edges if edge.source == source) - 1
    joined = led_to | {edge.source for edge in edges}
    used = {level: n for n, level in enumerate(sorted({levels[number] for number in joined}))}
    widths = [0.0] * (len(used) or 1)
    for number in joined:
        levels[number] = used[levels[number]]
        widths[levels[number]] += boxes[number].width
    for number in set(range(len(boxes))) - joined:
        levels[number] = widths.index(min(widths))
        widths[levels[number]] += boxes[number].width
    return levels


def _threaded(edge: Edge, vertices: Sequence[_Vertex], layers: list[list[_Vertex]]) -> list[_Vertex]:
    """Joins an edge's ends, through a lane of its own in every layer between."""
    passed: list[_Vertex] = []
    upper, port = vertices[edge.source], edge.source_port
    for level in range(upper.layer + 1, vertices[edge.target].layer):
        lane = _Vertex(level, _LANE, lane=True)
        layers[level].append(lane)
        passed.append(lane)
        upper.below.append((lane, _LANE / 2, port))
        lane.above.append((upper, port, _LANE / 2))
        upper, port = lane, _LANE / 2
    lower = vertices[edge.target]
    upper.below.append((lower, edge.target_port, port))
    lower.above.append((upper, port, edge.target_port))
    return passed


def _order(layers: list[list[_Vertex]]) -> None:
    """The best order of some sweeps down and up."""
    for layer in layers:
        _number(layer)
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = {id(v): _mean_place(v, v.above if down else v.below) for v in layer}
            layer.sort(key=lambda vertex: wanted[id(vertex)])
            _number(layer)
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    for layer, order in zip(layers, best):
        layer[:] = order
        _number(layer)


def _number(layer: Sequence[_Vertex]) -> None:
    for place, vertex in enumerate(layer):
        vertex.place = place


def _mean_place(vertex: _Vertex, neighbours: Sequence[tuple[_Vertex, float, float]]) -> float:
    if not neighbours:  # one without edges stands aside
        return float(vertex.place) if vertex.above or vertex.below else float("inf")
    return sum(other.place + port / other.width for other, port, _ in neighbours) / len(neighbours)


def _crossings(layers: Sequence[Sequence[_Vertex]]) -> int:
    """How many pairs of edges cross."""
    count = 0
    for layer in layers:
        ends = [(v.place + here / v.width, w.place + there / w.width) for v in layer for w, there, here in v.below]
        ends.sort()
        for n, (_, end) in enumerate(ends):
            count += sum(other < end for _, other in ends[n + 1 :])
    return count


def _settle(layers: Sequence[Sequence[_Vertex]]) -> None:
    """Moves boxes towards their neighbours; the order stays."""
    for layer in layers:
        x = 0.0
        for vertex in layer:
            vertex.x = x
            x += vertex.width + _GAP
    for move in range(_MOVES):
        for layer in layers if move % 2 == 0 else reversed(layers):
            wanted, weights = [], []
            for vertex in layer:
                near = vertex.above + vertex.below if move > _MOVES // 2 else vertex.above or vertex.below
                if move % 2 and move <= _MOVES // 2:
                    near = vertex.below or vertex.above
                spots = [other.x + there - here for other, there, here in near]
                wanted.append(sum(spots) / len(spots) if spots else vertex.x)
                weights.append(8.0 if vertex.lane else 1.0 if spots else 1e-3)
            for vertex, x in zip(layer, spread(wanted, [v.width + _GAP for v in layer], weights)):
                vertex.x = x


def spread(wanted: Sequence[float], widths: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Places in the same order that do not overlap, as near as possible to those wanted (least squares).

    >>> spread([0, 0], [10, 10], [1, 1])
    [-5.0, 5.0]
    """
    blocks: list[tuple[float, float, int]] = []  # (where its first one would be, weight, how many)
    before = 0.0
    for place, width, weight in zip(wanted, widths, weights):
        block = (place - before, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            last = blocks.pop()
            total = last[1] + block[1]
            block = ((last[0] * last[1] + block[0] * block[1]) / total, total, last[2] + block[2])
        blocks.append(block)
        before += width
    found, before = [], 0.0
    every = [start for start, _, count in blocks for _ in range(count)]
    for start, width in zip(every, widths):
        found.append(float(start + before))
        before += width
    return found
