"""Where boxes and arrows go: layer by layer, with few crossings.

Arrows run from layer to layer. Between two layers of boxes lies one for the labels of the wires, and an arrow
that passes a layer has a place of its own there: no line runs through a box or a text. igraph orders each
layer (Sugiyama's method). Arrows that close a cycle return beside the picture, in lanes of their own.

Here one coordinate runs *along* the arrows and the other *across* them.
"""

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import TypeAlias

from pjax.tools.drawing.diagram import Arrow, Diagram
from pjax.tools.drawing.needs import module

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


@dataclasses.dataclass(frozen=True)
class Rectangle:
    """A place: its centre and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Route:
    """The way of an arrow, and where its label is."""

    start: Point
    segments: tuple[Segment, ...]
    label: Rectangle | None


@dataclasses.dataclass(frozen=True)
class Placed:
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


@dataclasses.dataclass
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
        self._diagram, self._down = diagram, down
        self._corner = WIDE if down else CORNER
        kinds = {box.key: box.kind for box in diagram.boxes}
        # What runs through operations is to be straight; parameters and constants join from the sides.
        self._weights = [
            1.0 if kinds[a.source] in ("parameter", "constant") or a.back else 1000.0 for a in diagram.arrows
        ]
        self._labels = [None if size is None else self._turned(size) for size in labels]
        layers = layers_of(diagram)
        self._boxes = {
            box.key: _Vertex(2 * layers[box.key], *self._turned(sizes[box.key])) for box in diagram.boxes
        }
        self._chains = [
            self._chain(arrow, label) for arrow, label in zip(diagram.arrows, self._labels, strict=True)
        ]
        for box in diagram.boxes:  # room for all arrows that enter
            entering = sum(arrow.target == box.key for arrow in diagram.arrows)
            vertex = self._boxes[box.key]
            vertex.across = max(vertex.across, PORT * (entering - 1) + 2 * self._corner)
        self._order()
        self._columns()

    def _turned(self, pair: tuple[float, float]) -> tuple[float, float]:
        """From width and height to along and across, and the other way round."""
        return pair[::-1] if self._down else pair

    def _chain(self, arrow: Arrow, label: Size | None) -> list[_Vertex]:
        """What stands for an arrow in the layers between its ends; the label is next to the reader."""
        if arrow.back:
            return []
        first, last = self._boxes[arrow.source].layer + 1, self._boxes[arrow.target].layer - 1
        chain = [_Vertex(layer) for layer in range(first, last + 1)]
        if label is not None:
            chain[-1].along, chain[-1].across = label
        return chain

    def _order(self) -> None:
        """Places across, by igraph."""
        vertices = list(self._boxes.values())
        joined: list[tuple[int, int]] = []
        weights: list[float] = []
        number = {id(v): i for i, v in enumerate(vertices)}
        for arrow, chain, weight in zip(self._diagram.arrows, self._chains, self._weights, strict=True):
            if arrow.back:
                continue
            number.update({id(v): len(vertices) + i for i, v in enumerate(chain)})
            vertices += chain
            way = [self._boxes[arrow.source], *chain, self._boxes[arrow.target]]
            joined += [(number[id(a)], number[id(b)]) for a, b in itertools.pairwise(way)]
            # Above all, what passes layers is.
            weights += [weight, *[20 * weight] * (len(chain) - 1), weight]
        graph = module("igraph").Graph(len(vertices), joined, directed=True)
        layers = [v.layer for v in vertices]
        found = graph.layout_sugiyama(layers=layers, hgap=1, vgap=1, maxiter=_rounds(1000, len(vertices)))
        for vertex, (at, _) in zip(vertices, found, strict=True):
            vertex.at = at
        ends = [(vertices[a], vertices[b]) for a, b in joined]
        rows = _in_layers(vertices)
        _spread(rows, [(*pair, weight) for pair, weight in zip(ends, weights, strict=True)])
        for chain in self._chains:
            _straighten(chain, rows)

    def _columns(self) -> None:
        """Places along: the start and the end of each layer."""
        lanes = sorted(
            (i for i, arrow in enumerate(self._diagram.arrows) if arrow.back),
            key=lambda i: (self._span(self._diagram.arrows[i]), i),
        )
        self._runs: dict[tuple[int, bool], int] = {}
        runs: dict[int, int] = collections.Counter()
        for i in lanes:  # each return runs beside the layer it leaves, and beside the one it comes to
            arrow = self._diagram.arrows[i]
            for gap, is_end in (
                (self._boxes[arrow.source].layer + 1, False),
                (self._boxes[arrow.target].layer, True),
            ):
                self._runs[i, is_end] = runs[gap]
                runs[gap] += 1
        vertices = [*self._boxes.values(), *(v for chain in self._chains for v in chain)]
        last = max(v.layer for v in vertices)
        self._starts, self._ends = [], []
        at = AWAY + RUN * runs[0] if runs[0] else 0.0
        for layer in range(last + 1):
            width = max((v.along for v in vertices if v.layer == layer), default=0.0)
            self._starts.append(at)
            self._ends.append(at + width)
            at += width + GAP + RUN * runs[layer + 1]
        self._length = self._ends[-1] + (AWAY + RUN * runs[last + 1] if runs[last + 1] else 0.0)
        top = min(v.at - v.across / 2 for v in vertices)
        for v in vertices:
            v.at -= top
        bottom = max(v.at + v.across / 2 for v in vertices)
        self._lane: dict[int, float] = {}
        for i in lanes:
            breadth = (self._labels[i] or (0.0, 0.0))[1] + ROOM / 2
            self._lane[i] = bottom + max(breadth, LANE) / 2 + ROOM / 4
            bottom += max(breadth, LANE)
        self._width = bottom

    def _span(self, arrow: Arrow) -> int:
        return self._boxes[arrow.source].layer - self._boxes[arrow.target].layer

    # --- Ways ---

    def placed(self) -> Placed:
        boxes = {
            key: self._rectangle(self._middle(v), v.at, v.along, v.across) for key, v in self._boxes.items()
        }
        ports = self._ports()
        routes = tuple(
            self._returning(i, arrow, ports[i]) if arrow.back else self._forward(i, arrow, ports[i])
            for i, arrow in enumerate(self._diagram.arrows)
        )
        return Placed(boxes, routes, *self._turned((self._length, self._width)))

    def _rectangle(self, along: float, across: float, length: float, breadth: float) -> Rectangle:
        return Rectangle(*self._turned((along, across)), *self._turned((length, breadth)))

    def _middle(self, v: _Vertex) -> float:
        return (self._starts[v.layer] + self._ends[v.layer]) / 2

    def _ports(self) -> list[float]:
        """For each arrow, how far from the middle of its box it enters: straight, where there is room."""
        found = [0.0] * len(self._diagram.arrows)
        entering: dict[str, list[tuple[float, int]]] = collections.defaultdict(list)
        for i, (arrow, chain) in enumerate(zip(self._diagram.arrows, self._chains, strict=True)):
            before = float("inf") if arrow.back else chain[-1].at
            entering[arrow.target].append((before, i))
        for key, arrivals in entering.items():
            box = self._boxes[key]
            most = box.across / 2 - self._corner
            arrivals.sort()
            wanted = [min(max(at - box.at, -most), most) for at, _ in arrivals]
            places = _apart(wanted, [self._weights[i] for _, i in arrivals], [0.0] * len(wanted), PORT)
            for k, ((_, i), at) in enumerate(zip(arrivals, places, strict=True)):
                found[i] = min(max(at, k * PORT - most), most - (len(arrivals) - 1 - k) * PORT)
        return found

    def _forward(self, i: int, arrow: Arrow, port: float) -> Route:
        source, target = self._boxes[arrow.source], self._boxes[arrow.target]
        start = (self._middle(source) + source.along / 2, source.at)
        segments: list[Segment] = [((self._ends[source.layer], source.at),)]
        here = source.at
        for layer, at in [*((v.layer, v.at) for v in self._chains[i]), (target.layer, target.at + port)]:
            a, b = self._ends[layer - 1], self._starts[layer]
            segments.append((((a + b) / 2, here), ((a + b) / 2, at), (b, at)))
            if layer != target.layer:
                segments.append(((self._ends[layer], at),))
            here = at
        segments.append(((self._middle(target) - target.along / 2, here),))
        label, size = None, self._labels[i]
        if size is not None:
            v = self._chains[i][-1]
            label = self._rectangle(self._middle(v), v.at, *size)
        return self._route(start, segments, label)

    def _returning(self, i: int, arrow: Arrow, port: float) -> Route:
        source, target = self._boxes[arrow.source], self._boxes[arrow.target]
        start = (self._middle(source) + source.along / 2, source.at)
        out = self._ends[source.layer] + AWAY + RUN * self._runs[i, False]
        back = self._starts[target.layer] - AWAY - RUN * self._runs[i, True]
        lane, end = self._lane[i], target.at + port
        corners = [start, (out, source.at), (out, lane), (back, lane), (back, end)]
        segments = _rounded([*corners, (self._middle(target) - target.along / 2, end)])
        size = self._labels[i]
        label = None if size is None else self._rectangle((out + back) / 2, lane, *size)
        return self._route(start, segments, label)

    def _route(self, start: Point, segments: Sequence[Segment], label: Rectangle | None) -> Route:
        turned = tuple(tuple(self._turned(point) for point in segment) for segment in segments)
        return Route(self._turned(start), turned, label)


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


Layers: TypeAlias = dict[int, list[_Vertex]]
"""What is in each layer, in order."""


def _in_layers(vertices: Sequence[_Vertex]) -> Layers:
    layers: Layers = collections.defaultdict(list)
    for vertex in sorted(vertices, key=lambda v: v.at):
        layers[vertex.layer].append(vertex)
    return layers


def _rounds(most: int, size: int) -> int:
    """How often to improve: less in a large graph, so that it is there in a while."""
    return max(min(most, 1000 * most // size), 2)


def _spread(layers: Layers, joined: Sequence[tuple[_Vertex, _Vertex, float]]) -> None:
    """Give every vertex room, in the order of its layer, and move it to where its neighbours are."""
    near: dict[int, list[tuple[_Vertex, float]]] = collections.defaultdict(list)
    for a, b, weight in joined:
        near[id(a)].append((b, weight))
        near[id(b)].append((a, weight))
    vertices = [v for layer in layers.values() for v in layer]
    largest = max(v.across for v in vertices) + ROOM
    for vertex in vertices:
        vertex.at *= largest
    order = sorted(layers)
    for _ in range(_rounds(60, len(vertices))):
        for number in (*order, *reversed(order)):
            layer = layers[number]
            weights = [sum(weight for _, weight in near[id(v)]) for v in layer]
            wanted = [
                sum(u.at * weight for u, weight in near[id(v)]) / total if total else v.at
                for v, total in zip(layer, weights, strict=True)
            ]
            heavy = [max(total, 1.0) for total in weights]
            for vertex, at in zip(layer, _apart(wanted, heavy, [v.across for v in layer], ROOM), strict=True):
                vertex.at = at


def _straighten(chain: Sequence[_Vertex], layers: Layers) -> None:
    """Put all of an arrow's places at one height, where nothing is in the way."""
    low, high = float("-inf"), float("inf")
    for vertex in chain:
        layer = layers[vertex.layer]
        i = next(k for k, other in enumerate(layer) if other is vertex)
        for other in layer[max(i - 1, 0) : i]:
            low = max(low, other.at + (other.across + vertex.across) / 2 + ROOM)
        for other in layer[i + 1 : i + 2]:
            high = min(high, other.at - (other.across + vertex.across) / 2 - ROOM)
    if chain and low <= high:
        at = min(max(sum(v.at for v in chain) / len(chain), low), high)
        for vertex in chain:
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
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        total, heavy, count = weight * (want - offset), weight, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / heavy:
            before = blocks.pop()
            total, heavy, count = total + before[0], heavy + before[1], count + before[2]
        blocks.append((total, heavy, count))
    flat = [total / heavy for total, heavy, count in blocks for _ in range(count)]
    return [at + offset for at, offset in zip(flat, offsets, strict=True)]


def _rounded(points: Sequence[Point]) -> list[Segment]:
    """Straight lines between points, with round corners."""
    segments: list[Segment] = []
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _towards(corner, before), _towards(corner, after)
        segments += [(into,), (corner, corner, out)]
    return [*segments, (points[-1],)]


def _towards(corner: Point, other: Point) -> Point:
    """A point near a corner, on the way to another."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)
    step = min(ROUND, length / 2) / length if length else 0.0
    return corner[0] + dx * step, corner[1] + dy * step
