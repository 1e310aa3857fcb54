"""Why a graph is divided as it is: its sets, its odd cycles, and the identity nodes that break them."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pjax.checks import check_function
from pjax.graph import read as tracing
from pjax.graph.nodes import Graph
from pjax.optim.alternating_projections import AlternatingProjections
from pjax.optim.solver import Solver, check_solver
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
    check_solver(solver)
    check_function(fn)
    graph = tracing.build(tracing.read(fn, params), sweeps=solver.sweeps)
    partition = solver.partition(graph)
    divided, number = partition.graph, {node.name: node.index for node in graph.nodes}

    def originals(nodes: Iterable[int]) -> list[int]:
        return [number[divided.nodes[v].name] for v in dict.fromkeys(nodes)]

    def shown(nodes: Iterable[int]) -> tuple[NodeInfo, ...]:
        return tuple(info(graph, graph.nodes[v]) for v in nodes)

    identities = []
    for node in divided.nodes:
        if node.name not in number:
            (behind,) = originals(node.inputs[0].sources)
            readers = originals(r for r, _ in divided.readers[node.index])
            cycles = filter(None, (_odd_cycle(graph, behind, r) for r in readers))
            cycle = min(cycles, key=len, default=())
            (passed,) = shown([behind])
            identities.append(InsertedIdentity(node.name, passed, shown(readers), shown(cycle)))
    sets = tuple(tuple(info(divided, divided.nodes[v]) for v in nodes) for nodes in partition.sets)
    return PartitionReport(solver.name, sets, tuple(identities))


def _odd_cycle(graph: Graph, v: int, r: int) -> tuple[int, ...]:
    """An odd cycle through the edge of two nodes: a shortest even path from one to the other; empty for none.

    Each node is reached twice, once in an even and once in an odd number of steps.
    """
    paths: deque[tuple[int, ...]] = deque([(v,)])
    reached = {(v, 0)}
    while paths:
        path = paths.popleft()
        if path[-1] == r and len(path) % 2:
            return path if len(set(path)) == len(path) else ()
        for u in sorted(graph.neighbours[path[-1]]):
            if {u, path[-1]} != {v, r} and (u, len(path) % 2) not in reached:
                reached.add((u, len(path) % 2))
                paths.append((*path, u))
    return ()
