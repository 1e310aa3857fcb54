"""How many edges there are, and how many leave each number: counted without running anything."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pjax.graph import wires
from pjax.graph.nodes import Graph, Node
from pjax.graph.wires import Evaluator, evenly_read


def entering(node: Node, i: int) -> int:
    """The number of edges of an input."""
    return 0 if node.rule is None else node.rule.entering(i, node.inputs[i].shape)


def leaving(graph: Graph, node: Node, i: int, known: Evaluator) -> Mapping[int, Any]:
    """For each source of an input, the number of edges from each of its numbers to there.

    One number where it is the same for all; an array need not have all axes in full. None where it follows
    from the parameters, as what an order or a branch chooses does.
    """
    if node.rule is None or i >= len(node.wires) or node.inputs[i].constant:
        return {}
    place, wire = (node.index, i), node.inputs[i]
    chosen = any(wires.needs_of(e) for e in wires.walk(wire.expr, held=False) if not e.depends)
    given = wires.zeros if chosen else known
    found = wires.wirings({place: wire}, [n.shape for n in graph.nodes], graph.dtype, given)
    unknown = wire.steered if chosen else set()
    counts = wires.leaving(found, {place: node.rule.count(i)})
    return {s: None if s in unknown else count for s, count in counts}


def of_constant(node: Node, i: int) -> Any:
    """The number of edges from each number of a constant to an input; None where more than that is read.

    One number where it is the same for all; an array need not have all axes in full.
    """
    source, times = evenly_read(node.inputs[i].expr)
    if node.rule is None or source.constant is None or not source.size:
        return None
    slots = node.rule.count(i)
    return slots * times if isinstance(slots, int) else slots if times == 1 else None


def least_and_most(count: Any, *, read: bool = False) -> tuple[int, int]:
    """The least and the most of some counts; with `read`, of those that are not zero.

    >>> least_and_most(3), least_and_most(np.array([[0.0, 1.0, 4.0]])), least_and_most([0, 1, 4], read=True)
    ((3, 3), (0, 4), (1, 4))
    """
    array = np.asarray(count)
    if read and array.max() > 0:
        array = array[array > 0]
    return round(float(array.min())), round(float(array.max()))


def total(count: Any, shape: tuple[int, ...]) -> int:
    """The sum of what is counted for each number of an array of some shape.

    >>> total(3, (2, 2)), total(np.array([[1.0, 4.0]]), (3, 2))
    (12, 15)
    """
    array = np.asarray(count, np.float64)
    return round(float(array.sum()) * math.prod(shape) / array.size)
