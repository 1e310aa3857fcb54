"""Where boxes and arrows go: layer by layer, with few crossings.

Arrows run from layer to layer. Between two layers of boxes lies one for the labels of the wires, and an arrow
that passes a layer has a place of its own there: no line runs through a box or a text. igraph orders each
layer (Sugiyama's method). Arrows that close a cycle return beside the picture, in lanes of their own.

Here one coordinate runs *along* the arrows and the other *across* them.
"""

import collections
import dataclasses
import importlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from pjax.errors import PjaxError
from pjax.tools.drawing.diagram import Arrow, Diagram

Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[float, float]
Segment: TypeAlias = tuple[Point, ...]
"""One point: a line to there. Three: a Bézier curve."""

GAP = 20.0  # between a layer and its neighbour
ROOM = 18.0  # between neighbours of one layer
LANE = 20.0  # between arrows that return
RUN = 9.0  # between parts of these that run beside each other
PORT = 12.0  # between arrows that enter one box
CORNER, WIDE = 10.0, 20.0  # between these and the end of its side; at the top, where the number of the set is
AWAY = 15.0  # between these and the layer
ROUND = 9.0  # radius of corners


def module(name: str) -> Any:
    """A module of the extra ``draw``, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise PjaxError(
            f'pictures need {package}: pip install "pjax-learn[draw]". DOT and Mermaid need nothing more'
        ) from None


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


def place(
    diagram: Diagram, sizes: dict[str, Size], labels: Sequence[Size | None], *, down: bool = False
) -> Placed:
    """Find places.

    Args:
        diagram: boxes and arrows.
        sizes: width and height of each box.
        labels: of the label of each arrow; None where it has none.
        down: whether arrows run downwards, instead of to the right.
    """
    return _Placer(diagram, sizes, labels, down).placed()


@dataclasses.dataclass(eq=False)
class _Vertex:
    """Something in a layer: a box, a label, or an arrow that passes."""

    layer: int
    along: float = 0.0
    across: float = 0.0
    """Its size."""
    at: float = 0.0
    """Its place across."""


class _Placer:
    def __init__(
        self, diagram: Diagram, sizes: dict[str, Size], labels: Sequence[Size | None], down: bool
    ) -> None:
        self._down, self._arrows = down, diagram.arrows
        self._corner = WIDE if down else CORNER
        # What runs through operations is to be straight; parameters and constants join from the sides.
        aside = {box.key for box in diagram.boxes if box.kind in ("parameter", "constant")}
        self._weights = [1.0 if a.source in aside or a.back else 1000.0 for a in diagram.arrows]
        self._labels = [None if size is None else self._turned(size) for size in labels]
        layers = layers_of(diagram)
        entering = collections.Counter(arrow.target for arrow in diagram.arrows)
        self._boxes: dict[str, _Vertex] = {}
        for box in diagram.boxes:
            along, across = self._turned(sizes[box.key])
            room = PORT * (entering[box.key] - 1) + 2 * self._corner  # for all arrows that enter
            self._boxes[box.key] = _Vertex(2 * layers[box.key], along, max(across, room))
        self._chains = list(map(self._chain, diagram.arrows, self._labels))
        self._returns = sorted(
            (i for i, arrow in enumerate(diagram.arrows) if arrow.back),
            key=lambda i: self._source(i).layer - self._target(i).layer,
        )
        self._vertices = [*self._boxes.values(), *itertools.chain(*self._chains)]
        self._order()
        self._columns()

    def _turned(self, pair: tuple[float, float]) -> tuple[float, float]:
        """From width and height to along and across, and the other way round."""
        return pair[::-1] if self._down else pair

    def _source(self, i: int) -> _Vertex:
        return self._boxes[self._arrows[i].source]

    def _target(self, i: int) -> _Vertex:
        return self._boxes[self._arrows[i].target]

    def _chain(self, arrow: Arrow, label: Size | None) -> list[_Vertex]:
        """What stands for an arrow in the layers between its ends; the label is next to the reader."""
        if arrow.back:
            return []
        between = range(self._boxes[arrow.source].layer + 1, self._boxes[arrow.target].layer)
        chain = [_Vertex(layer) for layer in between]
        if label is not None:
            chain[-1].along, chain[-1].across = label
        return chain

    def _order(self) -> None:
        """Places across: an order of each layer by igraph, and then room, near to what they are joined to."""
        joined: list[tuple[_Vertex, _Vertex, float]] = []
        for i, (chain, weight) in enumerate(zip(self._chains, self._weights, strict=True)):
            if chain:
                way = itertools.pairwise([self._source(i), *chain, self._target(i)])
                # Above all, what passes layers is to be straight.
                weights = [weight, *[20 * weight] * (len(chain) - 1), weight]
                joined += [(a, b, w) for (a, b), w in zip(way, weights, strict=True)]
        number = {vertex: i for i, vertex in enumerate(self._vertices)}
        edges = [(number[a], number[b]) for a, b, _ in joined]
        graph = module("igraph").Graph(len(number), edges, directed=True)
        layers = [v.layer for v in self._vertices]
        found = graph.layout_sugiyama(layers=layers, hgap=1, vgap=1, maxiter=_rounds(1000, len(number)))
        for vertex, (at, _) in zip(self._vertices, found, strict=True):
            vertex.at = at
        _spread(self._vertices, joined)

    def _columns(self) -> None:
        """Places along: the start and the end of each layer. Returns run beside the layers of their ends."""
        runs = AWAY + RUN * len(self._returns) if self._returns else 0.0
        self._starts, self._ends = [], []
        at = runs
        for layer in range(max(v.layer for v in self._vertices) + 1):
            width = max((v.along for v in self._vertices if v.layer == layer), default=0.0)
            self._starts.append(at)
            self._ends.append(at + width)
            at += width + GAP + RUN * len(self._returns)
        self._length = self._ends[-1] + runs
        top = min(v.at - v.across / 2 for v in self._vertices)
        for v in self._vertices:
            v.at -= top
        self._width = max(v.at + v.across / 2 for v in self._vertices)
        self._lanes: dict[int, float] = {}
        for i in self._returns:
            breadth = max((self._labels[i] or (0.0, 0.0))[1] + ROOM / 2, LANE)
            self._lanes[i] = self._width + breadth / 2 + ROOM / 4
            self._width += breadth

    # --- Ways ---

    def placed(self) -> Placed:
        boxes = {
            key: self._rectangle(self._middle(v), v.at, (v.along, v.across)) for key, v in self._boxes.items()
        }
        ports = self._ports()
        routes = (
            self._returning(i, ports[i]) if arrow.back else self._forward(i, ports[i])
            for i, arrow in enumerate(self._arrows)
        )
        return Placed(boxes, tuple(routes), *self._turned((self._length, self._width)))

    def _rectangle(self, along: float, across: float, size: Size) -> Rectangle:
        return Rectangle(*self._turned((along, across)), *self._turned(size))

    def _middle(self, v: _Vertex) -> float:
        return (self._starts[v.layer] + self._ends[v.layer]) / 2

    def _ports(self) -> dict[int, float]:
        """For each arrow, how far from the middle of its box it enters: straight, where there is room."""
        found: dict[int, float] = {}
        for key, box in self._boxes.items():
            arrivals = sorted(
                (self._chains[i][-1].at if self._chains[i] else float("inf"), i)
                for i, arrow in enumerate(self._arrows)
                if arrow.target == key
            )
            most = box.across / 2 - self._corner
            wanted = [min(max(at - box.at, -most), most) for at, _ in arrivals]
            places = _apart(wanted, [self._weights[i] for _, i in arrivals], [0.0] * len(wanted), PORT)
            for k, ((_, i), at) in enumerate(zip(arrivals, places, strict=True)):
                found[i] = min(max(at, k * PORT - most), most - (len(arrivals) - 1 - k) * PORT)
        return found

    def _forward(self, i: int, port: float) -> Route:
        source, target = self._source(i), self._target(i)
        segments: list[Segment] = [((self._ends[source.layer], source.at),)]
        here = source.at
        for layer, at in [*((v.layer, v.at) for v in self._chains[i]), (target.layer, target.at + port)]:
            a, b = self._ends[layer - 1], self._starts[layer]
            segments.append((((a + b) / 2, here), ((a + b) / 2, at), (b, at)))
            if layer != target.layer:
                segments.append(((self._ends[layer], at),))
            here = at
        last = self._chains[i][-1]
        return self._route(i, port, segments, (self._middle(last), last.at))

    def _returning(self, i: int, port: float) -> Route:
        source, target = self._source(i), self._target(i)
        away = AWAY + RUN * self._returns.index(i)
        out, back = self._ends[source.layer] + away, self._starts[target.layer] - away
        lane, end = self._lanes[i], target.at + port
        ends = (self._middle(source), source.at), (self._middle(target), end)
        corners = _rounded([ends[0], (out, source.at), (out, lane), (back, lane), (back, end), ends[1]])
        return self._route(i, port, corners, ((out + back) / 2, lane))

    def _route(self, i: int, port: float, segments: list[Segment], label: Point) -> Route:
        """From the source, through segments, to the target."""
        source, target, size = self._source(i), self._target(i), self._labels[i]
        start = (self._middle(source) + source.along / 2, source.at)
        end = (self._middle(target) - target.along / 2, target.at + port)
        turned = tuple(tuple(map(self._turned, segment)) for segment in (*segments, (end,)))
        return Route(self._turned(start), turned, None if size is None else self._rectangle(*label, size))


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
    largest = max(v.across for v in vertices) + ROOM
    for vertex in sorted(vertices, key=lambda v: v.at):
        layers[vertex.layer].append(vertex)
        vertex.at *= largest
    order = sorted(layers)
    for _ in range(_rounds(60, len(vertices))):
        for number in (*order, *reversed(order)):
            layer = layers[number]
            heavy = [sum(weight for _, weight in near[v]) or 1.0 for v in layer]
            wanted = [
                sum(u.at * weight for u, weight in near[v]) / total if near[v] else v.at
                for v, total in zip(layer, heavy, strict=True)
            ]
            for vertex, at in zip(layer, _apart(wanted, heavy, [v.across for v in layer], ROOM), strict=True):
                vertex.at = at


def _apart(
    wanted: Sequence[float], weights: Sequence[float], sizes: Sequence[float], room: float
) -> list[float]:
    """The places nearest to the wanted ones, in the same order, with room for each.

    >>> _apart([0.0, 0.0], [1.0, 1.0], [10.0, 10.0], 2.0)
    [-6.0, 6.0]
    """
    offsets = [0.0]
    for a, b in itertools.pairwise(sizes):
        offsets.append(offsets[-1] + (a + b) / 2 + room)
    # Without their offsets the places must only not fall: neighbours that would are replaced by their mean.
    blocks: list[tuple[float, float, int]] = []
    for want, weight, offset in zip(wanted, weights, offsets, strict=False):
        total, heavy, count = weight * (want - offset), weight, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / heavy:
            before = blocks.pop()
            total, heavy, count = total + before[0], heavy + before[1], count + before[2]
        blocks.append((total, heavy, count))
    flat = [total / heavy for total, heavy, count in blocks for _ in range(count)]
    return [at + offset for at, offset in zip(flat, offsets, strict=False)]


def _rounded(points: Sequence[Point]) -> list[Segment]:
    """Straight lines between points, with round corners, up to the last corner."""
    segments: list[Segment] = []
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        segments += [(_towards(corner, before),), (corner, corner, _towards(corner, after))]
    return segments


def _towards(corner: Point, other: Point) -> Point:
    """A point near a corner, on the way to another."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    step = min(ROUND, length / 2) / length if length else 0.0
    return corner[0] + dx * step, corner[1] + dy * step
