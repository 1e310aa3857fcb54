"""Where boxes and arrows go: layer by layer, from the left to the right, with few crossings.

Between two layers of boxes lies one for the labels of the wires, and an arrow that passes a layer has a place
of its own there: no line runs through a box or a text. igraph orders each layer (Sugiyama's method). Arrows
that close a cycle return below the picture, in lanes of their own.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pjax.tools.drawing.diagram import Diagram
from pjax.tools.plotting import apart, module

Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[float, float]
Segment: TypeAlias = tuple[Point, ...]
"""One point: a line to there. Three: a Bézier curve."""

GAP = 20.0  # between a layer and its neighbour
ROOM = 18.0  # between neighbours of one layer
LANE = 20.0  # between arrows that return
RUN = 9.0  # between parts of these that run beside each other
PORT = 12.0  # between arrows that enter one box
CORNER = 10.0  # between these and the end of its side
AWAY = 15.0  # between these and the layer


class Rectangle(NamedTuple):
    """A place: its centre and its size."""

    x: float
    y: float
    width: float
    height: float


class Route(NamedTuple):
    """The way of an arrow, and where its label is."""

    start: Point
    segments: tuple[Segment, ...]
    label: Rectangle | None


class Placed(NamedTuple):
    """A diagram with places, all coordinates from zero."""

    boxes: dict[str, Rectangle]
    routes: tuple[Route, ...]
    """In the order of the arrows."""
    width: float
    height: float


def place(diagram: Diagram, sizes: dict[str, Size], labels: Sequence[Size | None]) -> Placed:
    """Find places.

    Args:
        diagram: boxes and arrows.
        sizes: width and height of each box.
        labels: of the label of each arrow; None where it has none.
    """
    layers = layers_of(diagram)
    entering = collections.Counter(arrow.target for arrow in diagram.arrows)
    boxes: dict[str, _Vertex] = {}
    for box in diagram.boxes:
        width, height = sizes[box.key]
        room = PORT * (entering[box.key] - 1) + 2 * CORNER  # for all arrows that enter
        boxes[box.key] = _Vertex(2 * layers[box.key], width, max(height, room))
    # What runs through operations is to be straight; parameters and constants join from the sides.
    aside = {box.key for box in diagram.boxes if box.kind in ("parameter", "constant")}
    wires = []
    for arrow, label in zip(diagram.arrows, labels, strict=True):
        weight = 1.0 if arrow.source in aside or arrow.back else 1000.0
        wires.append(_Wire(boxes[arrow.source], boxes[arrow.target], label, weight, arrow.back))
    returns = sorted((w for w in wires if w.back), key=lambda w: w.source.layer - w.target.layer)
    vertices = [*boxes.values(), *itertools.chain(*(wire.chain for wire in wires))]
    height = _rows(vertices, wires, returns)
    width = _columns(vertices, len(returns))
    for vertex in boxes.values():
        _ports(vertex, [wire for wire in wires if wire.target is vertex])
    spots = {key: Rectangle(v.x, v.y, v.width, v.height) for key, v in boxes.items()}
    return Placed(spots, tuple(wire.route() for wire in wires), width, height)


@dataclasses.dataclass(eq=False)
class _Vertex:
    """Something in a layer: a box, a label, or an arrow that passes."""

    layer: int
    width: float = 0.0
    height: float = 0.0
    y: float = 0.0
    left: float = 0.0
    right: float = 0.0
    """Where its layer begins and ends."""

    @property
    def x(self) -> float:
        return (self.left + self.right) / 2


@dataclasses.dataclass(eq=False)
class _Wire:
    """An arrow on its way."""

    source: _Vertex
    target: _Vertex
    label: Size | None
    weight: float
    back: bool
    port: float = 0.0
    """At which height it enters its target."""
    lane: float = 0.0
    away: float = 0.0
    """Of one that returns, how far down, and how far from its ends."""

    def __post_init__(self) -> None:
        # What stands for it in the layers between its ends; the label is next to the reader.
        between = () if self.back else range(self.source.layer + 1, self.target.layer)
        self.chain = [_Vertex(layer) for layer in between]
        if self.label is not None and self.chain:
            self.chain[-1].width, self.chain[-1].height = self.label

    @property
    def arrives(self) -> float:
        """At which height it comes to its target."""
        return self.chain[-1].y if self.chain else math.inf

    def route(self) -> Route:
        source, target = self.source, self.target
        start, end = (source.x + source.width / 2, source.y), (target.x - target.width / 2, self.port)
        way: list[Segment] = []
        if self.back:
            right, left = source.right + self.away, target.left - self.away
            way = [
                ((source.right, source.y),),
                ((right, source.y), (right, self.lane), (source.right, self.lane)),
                ((target.left, self.lane),),
                ((left, self.lane), (left, self.port), (target.left, self.port)),
            ]
            middle = (source.right + target.left) / 2, self.lane
        else:
            for a, b in itertools.pairwise([source, *self.chain, target]):
                y, half = self.port if b is target else b.y, (a.right + b.left) / 2
                way += [((a.right, a.y),), ((half, a.y), (half, y), (b.left, y))]
            middle = self.chain[-1].x, self.chain[-1].y
        return Route(start, (*way, (end,)), None if self.label is None else Rectangle(*middle, *self.label))


def _rows(vertices: Sequence[_Vertex], wires: Sequence[_Wire], returns: Sequence[_Wire]) -> float:
    """Heights: an order of each layer by igraph, and then room, near to what they are joined to."""
    joined: list[tuple[_Vertex, _Vertex, float]] = []
    for wire in wires:
        if wire.chain:
            # Above all, what passes layers is to be straight.
            weights = [wire.weight, *[20 * wire.weight] * (len(wire.chain) - 1), wire.weight]
            way = itertools.pairwise([wire.source, *wire.chain, wire.target])
            joined += [(a, b, w) for (a, b), w in zip(way, weights, strict=True)]
    number = {vertex: i for i, vertex in enumerate(vertices)}
    edges = [(number[a], number[b]) for a, b, _ in joined]
    graph = module("igraph", "draw").Graph(len(number), edges, directed=True)
    layers = [v.layer for v in vertices]
    found = graph.layout_sugiyama(layers=layers, hgap=1, vgap=1, maxiter=_rounds(1000, len(number)))
    for vertex, (y, _) in zip(vertices, found, strict=True):
        vertex.y = y
    _spread(vertices, joined)
    top = min(v.y - v.height / 2 for v in vertices)
    for v in vertices:
        v.y -= top
    height = max(v.y + v.height / 2 for v in vertices)
    for k, wire in enumerate(returns):
        room = max((wire.label or (0.0, 0.0))[1] + ROOM / 2, LANE)
        wire.lane, wire.away = height + room / 2 + ROOM / 4, AWAY + RUN * k
        height += room
    return height


def _columns(vertices: Sequence[_Vertex], returns: int) -> float:
    """Where each layer begins and ends. Returns run beside the layers of their ends."""
    runs = AWAY + RUN * returns if returns else 0.0
    x = runs
    for layer in range(max(v.layer for v in vertices) + 1):
        there = [v for v in vertices if v.layer == layer]
        width = max((v.width for v in there), default=0.0)
        for v in there:
            v.left, v.right = x, x + width
        x += width + GAP + RUN * returns
    return x - GAP - RUN * returns + runs


def _ports(box: _Vertex, wires: Sequence[_Wire]) -> None:
    """At which heights wires enter a box: straight, where there is room."""
    arrivals, most = sorted(wires, key=lambda wire: wire.arrives), box.height / 2 - CORNER
    wanted = [min(max(wire.arrives - box.y, -most), most) for wire in arrivals]
    places = apart(wanted, [PORT] * (len(wanted) - 1), [wire.weight for wire in arrivals])
    for k, (wire, y) in enumerate(zip(arrivals, places, strict=True)):
        wire.port = box.y + min(max(y, k * PORT - most), most - (len(arrivals) - 1 - k) * PORT)


def layers_of(diagram: Diagram) -> dict[str, int]:
    """The layer of each box: operations as early as can be, parameters and constants just before a reader."""
    reads: dict[str, list[str]] = collections.defaultdict(list)
    readers: dict[str, list[str]] = collections.defaultdict(list)
    for arrow in diagram.arrows:
        if not arrow.back:
            reads[arrow.target].append(arrow.source)
            readers[arrow.source].append(arrow.target)
    layer: dict[str, int] = {}
    for box in diagram.boxes:
        layer[box.key] = 1 + max((layer[s] for s in reads[box.key]), default=-1)
    for box in diagram.boxes:
        if not reads[box.key] and readers[box.key]:
            layer[box.key] = min(layer[r] for r in readers[box.key]) - 1
    return layer


def _rounds(most: int, size: int) -> int:
    """How often to improve: less in a large graph, so that it is there in a while."""
    return max(min(most, 1000 * most // size), 2)


def _spread(vertices: Sequence[_Vertex], joined: Sequence[tuple[_Vertex, _Vertex, float]]) -> None:
    """Give every vertex room, in the order of its layer, and move it to where its neighbours are."""
    near: dict[_Vertex, list[tuple[_Vertex, float]]] = collections.defaultdict(list)
    for a, b, weight in joined:
        near[a].append((b, weight))
        near[b].append((a, weight))
    layers: dict[int, list[_Vertex]] = collections.defaultdict(list)
    largest = max(v.height for v in vertices) + ROOM
    for vertex in sorted(vertices, key=lambda v: v.y):
        layers[vertex.layer].append(vertex)
        vertex.y *= largest
    order = sorted(layers)
    gaps = {n: [(a.height + b.height) / 2 + ROOM for a, b in itertools.pairwise(layers[n])] for n in order}
    heavy = {v: sum(weight for _, weight in near[v]) or 1.0 for v in vertices}
    for _ in range(_rounds(60, len(vertices))):
        for number in (*order, *reversed(order)):
            layer = layers[number]
            wanted = [sum(u.y * w for u, w in near[v]) / heavy[v] if near[v] else v.y for v in layer]
            places = apart(wanted, gaps[number], [heavy[v] for v in layer])
            for vertex, y in zip(layer, places, strict=True):
                vertex.y = y
