"""Why a graph is divided as it is: its sets, its odd cycles, and the identity nodes that break them."""

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pjax.graph import read as tracing
from pjax.graph.nodes import Graph
from pjax.optim.alternating_projections import AlternatingProjections
from pjax.optim.solver import Solver
from pjax.tools.drawing.names import NodeInfo, info


@dataclasses.dataclass(frozen=True)
class InsertedIdentity:
    """An identity node that the user did not write, and the odd cycle that it breaks."""

    name: str
    behind: NodeInfo
    """The node whose output it passes on."""
    readers: tuple[NodeInfo, ...]
    """The nodes that read it instead."""
    cycle: tuple[NodeInfo, ...]
    """A shortest odd cycle through the node and one of these readers: each shares an edge with the next, and
    the last with the first. Empty if none is found: the colouring is good, not always the best."""

    def __str__(self) -> str:
        readers = " and ".join(map(str, self.readers))
        lines = [f"{self.name} passes {self.behind} on to {readers}"]
        if self.cycle:
            lines.append(f"  because of an odd cycle of {len(self.cycle)} nodes:")
            lines += [f"    {node}" for node in self.cycle]
            lines.append(f"    and back to {self.cycle[0].label}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class PartitionReport:
    """How a method divides a graph. Printed, it explains the identity nodes."""

    method: str
    sets: tuple[tuple[NodeInfo, ...], ...]
    """The nodes that project at once, in the order in which the sets do."""
    identities: tuple[InsertedIdentity, ...]

    def __str__(self) -> str:
        sizes = sorted(len(nodes) for nodes in self.sets)
        lines = [f"{self.method}: {len(self.sets)} sets of {sizes[0]} to {sizes[-1]} nodes."]
        if not self.identities:
            return f"{lines[0]} No identity node was needed."
        lines += map(str, self.identities)
        lines.append(
            "Neighbours must not project at once, and two sets are not enough for an odd cycle: an identity"
            " on one of its edges makes it even, at the price of one hop. To choose the edge yourself, put"
            " pjax.identity there; CyclicProjections needs none."
        )
        return "\n".join(lines)


def explain_partition(fn: Callable[[Any], Any], params: Any, solver: Solver | None = None) -> PartitionReport:
    """Explain which nodes project together, and why identity nodes were inserted.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target.
        params: any pytree of floating-point arrays.
        solver: a method of `pjax.optim`; by default `AlternatingProjections`, with two sets.

    >>> import jax.numpy as jnp
    >>> import pjax
    >>> def loss(p):
    ...     return pjax.squared_error(p["a"] + p["a"] * p["b"], jnp.ones(3))
    >>> found = explain_partition(loss, {"a": jnp.ones(3), "b": jnp.ones(3)})
    >>> [(i.behind.label, [node.label for node in i.cycle]) for i in found.identities]
    [('a', ['a', 'sum(a)', 'dot(a, b)'])]
    """
    solver = AlternatingProjections() if solver is None else solver
    graph = tracing.build(tracing.read(fn, params), keep_loops=solver.keeps_loops)
    partition = solver.partition(graph)
    divided = partition.graph
    old = _originals(graph, divided)

    def shown(nodes: Sequence[int]) -> tuple[NodeInfo, ...]:
        return tuple(info(graph, graph.nodes[v]) for v in nodes)

    identities = []
    for node in divided.nodes:
        if node.index not in old:
            behind = old[node.inputs[0].sources[0]]
            readers = list(dict.fromkeys(old[r] for r, _ in divided.readers[node.index]))
            cycles = filter(None, (_odd_cycle(graph, behind, r) for r in readers))
            cycle = min(cycles, key=len, default=[])
            identities.append(InsertedIdentity(node.name, shown([behind])[0], shown(readers), shown(cycle)))
    sets = tuple(tuple(info(divided, divided.nodes[v]) for v in nodes) for nodes in partition.sets)
    return PartitionReport(solver.name, sets, tuple(identities))


def _originals(graph: Graph, divided: Graph) -> dict[int, int]:
    """For each node of a divided graph that was there before, its number in the graph."""
    found: dict[int, int] = {}
    for node in divided.nodes:
        if len(found) < len(graph.nodes) and node.name == graph.nodes[len(found)].name:
            found[node.index] = len(found)
    return found


def _odd_cycle(graph: Graph, v: int, r: int) -> list[int]:
    """An odd cycle through the edge of two nodes: a shortest even path from one to the other; empty for none.

    Each node is there twice, once for an even and once for an odd number of steps.
    """
    before: dict[tuple[int, int], tuple[int, int] | None] = {(v, 0): None}
    queue = deque(before)
    while queue and (r, 0) not in before:
        w, odd = queue.popleft()
        for u in sorted(graph.neighbours[w]):
            if {u, w} != {v, r} and (u, 1 - odd) not in before:
                before[u, 1 - odd] = w, odd
                queue.append((u, 1 - odd))
    path: list[int] = []
    at = (r, 0) if (r, 0) in before else None
    while at is not None:
        path.append(at[0])
        at = before[at]
    return path[::-1] if len(set(path)) == len(path) else []
