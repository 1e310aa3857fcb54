"""Where boxes and arrows go: layer by layer, from the left to the right, with few crossings.

Between two layers of boxes lies one for the labels of the wires, and an arrow that passes a layer has a place
of its own there: no line runs through a box or a text. igraph orders each layer (Sugiyama's method). Arrows
that close a cycle return below the picture, in lanes of their own.
"""

import collections
import dataclasses
import itertools
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
    return _Placer(diagram, sizes, labels).placed()


@dataclasses.dataclass(eq=False)
class _Vertex:
    """Something in a layer: a box, a label, or an arrow that passes."""

    layer: int
    width: float = 0.0
    height: float = 0.0
    y: float = 0.0


class _Placer:
    def __init__(self, diagram: Diagram, sizes: dict[str, Size], labels: Sequence[Size | None]) -> None:
        self._arrows, self._labels = diagram.arrows, labels
        # What runs through operations is to be straight; parameters and constants join from the sides.
        aside = {box.key for box in diagram.boxes if box.kind in ("parameter", "constant")}
        self._weights = [1.0 if a.source in aside or a.back else 1000.0 for a in diagram.arrows]
        layers = layers_of(diagram)
        entering = collections.Counter(arrow.target for arrow in diagram.arrows)
        self._boxes: dict[str, _Vertex] = {}
        for box in diagram.boxes:
            width, height = sizes[box.key]
            room = PORT * (entering[box.key] - 1) + 2 * CORNER  # for all arrows that enter
            self._boxes[box.key] = _Vertex(2 * layers[box.key], width, max(height, room))
        self._ends = [(self._boxes[a.source], self._boxes[a.target]) for a in diagram.arrows]
        # What stands for an arrow in the layers between its ends; the label is next to the reader.
        self._chains: list[list[_Vertex]] = []
        for arrow, (source, target), label in zip(diagram.arrows, self._ends, labels, strict=True):
            between = () if arrow.back else range(source.layer + 1, target.layer)
            self._chains.append([_Vertex(layer) for layer in between])
            if label is not None and not arrow.back:
                self._chains[-1][-1].width, self._chains[-1][-1].height = label
        returns = [i for i, arrow in enumerate(diagram.arrows) if arrow.back]
        self._returns = sorted(returns, key=lambda i: self._ends[i][0].layer - self._ends[i][1].layer)
        self._vertices = [*self._boxes.values(), *itertools.chain(*self._chains)]
        self._rows()
        self._columns()

    def _rows(self) -> None:
        """Heights: an order of each layer by igraph, and then room, near to what they are joined to."""
        joined: list[tuple[_Vertex, _Vertex, float]] = []
        for (source, target), chain, weight in zip(self._ends, self._chains, self._weights, strict=True):
            if chain:
                # Above all, what passes layers is to be straight.
                weights = [weight, *[20 * weight] * (len(chain) - 1), weight]
                way = itertools.pairwise([source, *chain, target])
                joined += [(a, b, w) for (a, b), w in zip(way, weights, strict=True)]
        number = {vertex: i for i, vertex in enumerate(self._vertices)}
        edges = [(number[a], number[b]) for a, b, _ in joined]
        graph = module("igraph", "draw").Graph(len(number), edges, directed=True)
        layers = [v.layer for v in self._vertices]
        found = graph.layout_sugiyama(layers=layers, hgap=1, vgap=1, maxiter=_rounds(1000, len(number)))
        for vertex, (y, _) in zip(self._vertices, found, strict=True):
            vertex.y = y
        _spread(self._vertices, joined)
        top = min(v.y - v.height / 2 for v in self._vertices)
        for v in self._vertices:
            v.y -= top
        self._height = max(v.y + v.height / 2 for v in self._vertices)
        self._lanes: dict[int, float] = {}
        for i in self._returns:
            height = max((self._labels[i] or (0.0, 0.0))[1] + ROOM / 2, LANE)
            self._lanes[i] = self._height + height / 2 + ROOM / 4
            self._height += height

    def _columns(self) -> None:
        """Where each layer begins and ends. Returns run beside the layers of their ends."""
        runs = AWAY + RUN * len(self._returns) if self._returns else 0.0
        self._columns_at: list[tuple[float, float]] = []
        x = runs
        for layer in range(max(v.layer for v in self._vertices) + 1):
            width = max((v.width for v in self._vertices if v.layer == layer), default=0.0)
            self._columns_at.append((x, x + width))
            x += width + GAP + RUN * len(self._returns)
        self._width = self._columns_at[-1][1] + runs

    # --- Ways ---

    def placed(self) -> Placed:
        boxes = {key: Rectangle(self._x(v), v.y, v.width, v.height) for key, v in self._boxes.items()}
        ports = self._ports()
        routes = (
            self._returning(i, ports[i]) if arrow.back else self._forward(i, ports[i])
            for i, arrow in enumerate(self._arrows)
        )
        return Placed(boxes, tuple(routes), self._width, self._height)

    def _x(self, v: _Vertex) -> float:
        return sum(self._columns_at[v.layer]) / 2

    def _ports(self) -> dict[int, float]:
        """For each arrow, at which height it enters its box: straight, where there is room."""
        found: dict[int, float] = {}
        for key, box in self._boxes.items():
            arrivals = sorted(
                (self._chains[i][-1].y if self._chains[i] else float("inf"), i)
                for i, arrow in enumerate(self._arrows)
                if arrow.target == key
            )
            most = box.height / 2 - CORNER
            wanted = [min(max(y - box.y, -most), most) for y, _ in arrivals]
            places = apart(wanted, [PORT] * (len(wanted) - 1), [self._weights[i] for _, i in arrivals])
            for k, ((_, i), y) in enumerate(zip(arrivals, places, strict=True)):
                found[i] = box.y + min(max(y, k * PORT - most), most - (len(arrivals) - 1 - k) * PORT)
        return found

    def _forward(self, i: int, port: float) -> Route:
        source, target = self._ends[i]
        segments: list[Segment] = [((self._columns_at[source.layer][1], source.y),)]
        here = source.y
        for layer, y in [*((v.layer, v.y) for v in self._chains[i]), (target.layer, port)]:
            a, b = self._columns_at[layer - 1][1], self._columns_at[layer][0]
            segments.append((((a + b) / 2, here), ((a + b) / 2, y), (b, y)))
            if layer != target.layer:
                segments.append(((self._columns_at[layer][1], y),))
            here = y
        last = self._chains[i][-1]
        return self._route(i, port, segments, (self._x(last), last.y))

    def _returning(self, i: int, port: float) -> Route:
        source, target = self._ends[i]
        away = AWAY + RUN * self._returns.index(i)
        right, left = self._columns_at[source.layer][1], self._columns_at[target.layer][0]
        lane = self._lanes[i]
        way: list[Segment] = [
            ((right, source.y),),
            ((right + away, source.y), (right + away, lane), (right, lane)),
            ((left, lane),),
            ((left - away, lane), (left - away, port), (left, port)),
        ]
        return self._route(i, port, way, ((left + right) / 2, lane))

    def _route(self, i: int, port: float, segments: list[Segment], label: Point) -> Route:
        """From the source, through segments, to the target."""
        (source, target), size = self._ends[i], self._labels[i]
        start = (self._x(source) + source.width / 2, source.y)
        end = (self._x(target) - target.width / 2, port)
        return Route(start, (*segments, (end,)), None if size is None else Rectangle(*label, *size))


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
