"""Which nodes project together.

Nodes that share an edge must not project at once. Two colours are enough for most networks; where the
graph has an odd cycle, an identity node on one of its edges makes it even. Cyclic projections go
through layers instead, and need no identity nodes.

Constants take no part: the constant slots of a node's inputs belong to the set opposite to the node.
"""

import dataclasses
import logging
from collections import deque

from pjax.graph.nodes import Graph, Node, renumber
from pjax.graph.wires import Substitution, Wire
from pjax.rules.sum import Identity

logger = logging.getLogger("pjax")


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """A graph, and its nodes in the sets that project one after the other."""

    graph: Graph
    sets: tuple[tuple[int, ...], ...]

    def set_of(self) -> dict[int, int]:
        return {node: k for k, nodes in enumerate(self.sets) for node in nodes}


def last_to_first(graph: Graph) -> Partition:
    """Every node alone, after all that read it."""
    return Partition(graph, tuple((node.index,) for node in reversed(graph.nodes)))


def two_sets(graph: Graph) -> Partition:
    """Colour a graph with two colours, the targets' colour first, inserting identities where needed."""
    colour = _colours(graph)
    split = [n for n in graph.nodes if _clashes(graph, colour, n.index)]
    if split:
        names = ", ".join(n.name for n in split)
        logger.debug(
            "odd cycles: %d identity nodes inserted behind %s; pjax.debug.explain_partition says why",
            len(split),
            names,
        )
        graph, colour = _insert(graph, colour, split)
    sets = tuple(tuple(v for v in range(len(graph.nodes)) if colour[v] == c) for c in (0, 1))
    return Partition(graph, sets)


def cyclic_layers(graph: Graph) -> Partition:
    """Layers by backward breadth-first search from the targets; adjacent nodes never share one."""
    distance = _distances(graph)
    layers: dict[tuple[int, int], list[int]] = {}
    place: dict[int, tuple[int, int]] = {}
    for v in sorted(range(len(graph.nodes)), key=lambda v: (distance[v], -v)):
        taken = {place[u] for u in graph.neighbours[v] if u in place}
        k = 0
        while (distance[v], k) in taken:
            k += 1
        place[v] = (distance[v], k)
        layers.setdefault(place[v], []).append(v)
    return Partition(graph, tuple(tuple(sorted(layers[key])) for key in sorted(layers)))


def _distances(graph: Graph) -> list[int]:
    distance = [-1] * len(graph.nodes)
    queue = deque(t.index for t in graph.targets)
    for t in queue:
        distance[t] = 0
    while queue:
        v = queue.popleft()
        for u in (s for wire in graph.nodes[v].wires for s in wire.sources):
            if distance[u] < 0:
                distance[u] = distance[v] + 1
                queue.append(u)
    return distance


def _clashes(graph: Graph, colour: list[int], v: int) -> list[int]:
    """The readers of v that have v's colour."""
    return [r for r, _ in graph.readers[v] if colour[r] == colour[v]]


def _colours(graph: Graph) -> list[int]:
    """Two colours with few nodes that clash with a reader: breadth-first, then local improvement."""
    colour = [-1] * len(graph.nodes)
    # What no target moves with, a parameter that is only held, may have any colour.
    for root in [*(t.index for t in graph.targets), *range(len(graph.nodes))]:
        if colour[root] >= 0:
            continue
        colour[root] = 0
        queue = deque([root])
        while queue:
            v = queue.popleft()
            for u in sorted(graph.neighbours[v]):
                if colour[u] < 0:
                    colour[u] = 1 - colour[v]
                    queue.append(u)

    def cost(v: int) -> int:
        return bool(_clashes(graph, colour, v))

    clashing = deque(v for v in range(len(colour)) if cost(v))
    budget = 50 * len(colour)
    while clashing and budget:
        v = clashing.popleft()
        for flip in (v, *_clashes(graph, colour, v)):
            budget = max(budget - 1, 0)
            near = {flip} | graph.neighbours[flip]
            before = sum(map(cost, near))
            colour[flip] = 1 - colour[flip]
            if sum(map(cost, near)) < before:
                clashing.extend(u for u in near if cost(u))
                break
            colour[flip] = 1 - colour[flip]
    return colour


def _insert(graph: Graph, colour: list[int], split: list[Node]) -> tuple[Graph, list[int]]:
    """One identity behind each node that clashes; the readers of its own colour read that instead."""
    between = {
        n.index: Node(i, f"{n.name}.identity", Identity(), (Wire(n.output),), n.shape, n.dtype, n.line)
        for i, n in enumerate(split, len(graph.nodes))
    }
    swap = [Substitution({v: n.output for v, n in between.items() if colour[v] == c}) for c in (0, 1)]
    nodes: list[Node] = []
    colours: list[int] = []
    for node in graph.nodes:
        mine = colour[node.index]
        nodes.append(node.rewired(swap[mine]))
        colours.append(mine)
        if node.index in between:
            nodes.append(between[node.index])
            colours.append(1 - mine)
    return renumber(nodes, graph.leaves, graph.outputs, graph.aux, graph.still), colours
