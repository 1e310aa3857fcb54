"""Stacking: equal nodes that project together as one.

The layers of a deep network, or the time steps of an unrolled loop, are many nodes of one set with the same
rule and the same shapes. Stacked along a new axis they are one node: a batched product, or a larger one where
they share a factor. What reads a member reads a slice of the stack, and the inputs of the members are
concatenated; runs of neighbours in another stack are one slice of it: nothing is copied member by member.

The sets stay what they were, so every method does what it did. But a stack may read itself, one step earlier:
the stacked graph has no order of evaluation (see `pjax.graph.stack.values`).
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from pjax.devices import rows, separate_arrays, several
from pjax.graph import wires as layout
from pjax.graph.nodes import Graph, Node
from pjax.graph.partition import Partition
from pjax.graph.stack import values
from pjax.graph.stack.alike import Signatures, Skeletons, mapped, neighbours, places, together
from pjax.graph.wires import Evaluator, Expr, Substitution, Wire


@dataclasses.dataclass(frozen=True, eq=False)
class StackedGraph(Graph):
    """A graph some of whose nodes are stacks."""

    original: Graph
    members: tuple[tuple[int, ...], ...]
    """For each node, those of the original graph that it stands for."""
    axes: tuple[int, ...]
    """For each node that is a stack, the axis along which its members lie."""
    sharding: NamedSharding | None = None
    """How members of stacks are divided among devices."""

    def evaluator(
        self,
        constants: Sequence[Any],
        leaves: Sequence[Any],
        softness: float | None = None,
        nudges: Mapping[int, jax.Array] = MappingProxyType({}),
    ) -> tuple[Evaluator, dict[int, Any]]:
        assert softness is None and not nudges  # methods that sweep stack nothing
        return values.evaluate(self, constants, leaves)

    @property
    def shardings(self) -> Mapping[int, NamedSharding]:
        found: dict[int, NamedSharding] = {}
        for v, members in enumerate(self.members):
            if self.sharding is not None and len(members) >= self.sharding.num_devices:
                spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * len(self.nodes[v].shape)
                spec[self.axes[v]] = self.sharding.spec[0]
                found[v] = NamedSharding(self.sharding.mesh, PartitionSpec(*spec))
        return found

    def axis_of_members(self, v: int) -> int | None:
        return self.axes[v] if len(self.members[v]) > 1 else None

    def origins(self, v: int, i: int) -> list[tuple[int, int]] | None:
        sources = [self.original.nodes[node].wires[i].sources for node in self.members[v]]
        at = places(self.members)
        return [at[node] for (node,) in sources] if all(len(s) == 1 for s in sources) else None

    def per_leaf(self, moves: Mapping[int, jax.Array]) -> list[jax.Array | None]:
        at = places(self.members)
        found = {v: rows(move) if len(self.members[v]) > 1 else [move] for v, move in moves.items()}
        at = {leaf: place for leaf, place in at.items() if place[0] in found}
        return [found[at[leaf][0]][at[leaf][1]] if leaf in at else None for leaf in self.original.leaves]


def unstacked(graph: Graph) -> tuple[Graph, Sequence[tuple[int, ...]]]:
    """The graph of single nodes, and for each node of the given one those that it stands for."""
    if isinstance(graph, StackedGraph):
        return graph.original, graph.members
    return graph, [(v,) for v in range(len(graph.nodes))]


def stacked(partition: Partition, sharding: NamedSharding | None = None) -> Partition:
    """The same partition with equal nodes of each set stacked, and divided among devices."""
    signatures = Signatures()
    place = partition.set_of()
    units = _units(partition.graph, place, signatures)
    if all(len(unit) == 1 for unit in units):
        return partition
    graph = dataclasses.replace(_Stacker(partition.graph, units, signatures).graph(), sharding=sharding)
    sets: list[list[int]] = [[] for _ in partition.sets]
    for v, unit in enumerate(units):
        sets[place[unit[0].index]].append(v)
    return Partition(graph, tuple(map(tuple, sets)))


# --- Which nodes belong together ---


def _units(graph: Graph, place: dict[int, int], signatures: Signatures) -> list[tuple[Node, ...]]:
    """The nodes, equal ones together, in the order of the first of each."""
    alike: dict[Any, list[Node]] = collections.defaultdict(list)
    single = _single(graph)
    for node in graph.nodes:
        alike[node.index if node.index in single else _kind(node, place)].append(node)
    units = [unit for nodes in alike.values() for unit in _by_shared_input(nodes, signatures)]
    units = _with_parameters(graph, units, place)
    return sorted(units, key=lambda unit: unit[0].index)


def _with_parameters(
    graph: Graph, units: list[tuple[Node, ...]], place: dict[int, int]
) -> list[tuple[Node, ...]]:
    """Parameters that the members of a unit alone read, each its own, are a unit, too."""
    taken: set[int] = set()
    found = []
    for unit in units:
        for i in range(len(unit[0].inputs) if len(unit) > 1 else 0):
            sources = [node.inputs[i].sources for node in unit]
            own = [graph.nodes[s[0]] for s in sources if len(s) == 1 and len(graph.readers[s[0]]) == 1]
            kinds = {(n.is_parameter, n.shape, n.dtype, place[n.index]) for n in own}
            different = len({n.index for n in own}) == len(unit)
            if different and len(kinds) == 1 and own[0].is_parameter:
                found.append(tuple(own))
                taken.update(n.index for n in own)
    return found + [unit for unit in units if not (len(unit) == 1 and unit[0].index in taken)]


LARGE = 2**20  # scalars


def _single(graph: Graph) -> set[int]:
    """The nodes that are not stacked: convolutions, for example.

    On a GPU also those that exchange large arrays with them. There it takes longer to copy such arrays to a
    stack and back than it takes to start a kernel for each.
    """
    single = {node.index for node in graph.nodes if node.rule is None or not node.rule.stackable}
    if not separate_arrays():
        return single
    rules = {node.index: node.rule for node in graph.nodes if node.rule is not None}
    near = {v for v in single if v in rules and rules[v].many_edges}
    more = near
    while more:
        more = {
            reader
            for v in near
            for reader, i in graph.readers[v]
            if math.prod(graph.nodes[reader].inputs[i].shape) >= LARGE
        } | {
            source
            for v in near
            for wire in graph.nodes[v].inputs
            for source in wire.sources
            if math.prod(graph.nodes[source].shape) >= LARGE
        }
        more = {v for v in more - near if v in rules and not (rules[v].many_edges or rules[v].is_target)}
        near |= more
    return single | near


def _kind(node: Node, place: dict[int, int]) -> Any:
    inputs = tuple((wire.shape, wire.dtype, wire.constant) for wire in node.inputs)
    return (place[node.index], node.rule, node.shape, node.dtype, inputs)


def _by_shared_input(nodes: list[Node], signatures: Signatures) -> list[tuple[Node, ...]]:
    """Divided by the input that most of them share with others, such as the weights of a layer."""
    if len(nodes) == 1:
        return [tuple(nodes)]
    seen = ([signatures(node.inputs[i].expr) for node in nodes] for i in range(len(nodes[0].inputs)))
    best = min(seen, key=lambda column: len(set(column)))
    if len(set(best)) == len(nodes):
        return [tuple(nodes)]
    parts: dict[int, list[Node]] = collections.defaultdict(list)
    for node, signature in zip(nodes, best, strict=True):
        parts[signature].append(node)
    return [tuple(part) for part in parts.values()]


# --- The graph of stacks ---


class _Stacker(Substitution):
    """Rewrites nodes and wires: expressions of the original graph as those of the stacked one."""

    def __init__(self, graph: Graph, units: list[tuple[Node, ...]], signatures: Signatures) -> None:
        self._graph = graph
        self._units = units
        self._signature = signatures
        self._skeleton = Skeletons([[node.index for node in unit] for unit in units])
        self._unit_of = self._skeleton.places
        self._forms = [self._form(unit) for unit in units]
        self._outputs = [
            Expr(shape, unit[0].dtype, depends=True, from_loss=unit[0].is_target, node=u)
            for u, (unit, (_, _, shape, _)) in enumerate(zip(units, self._forms, strict=True))
        ]
        super().__init__(
            {
                v: layout.index(self._outputs[u], p, self._forms[u][3])
                if len(units[u]) > 1
                else self._outputs[u]
                for v, (u, p) in self._unit_of.items()
            }
        )

    def graph(self) -> StackedGraph:
        nodes = tuple(self._node(u) for u in range(len(self._units)))
        return StackedGraph(
            nodes,
            tuple(None if leaf is None else self._unit_of[leaf][0] for leaf in self._graph.leaves),
            tuple(map(self, self._graph.outputs)),
            tuple(map(self, self._graph.aux)),
            tuple(map(self, self._graph.still)),
            self._graph,
            tuple(tuple(node.index for node in unit) for unit in self._units),
            tuple(axis for _, _, _, axis in self._forms),
        )

    def _form(self, unit: tuple[Node, ...]) -> tuple[Any, tuple[bool, ...], tuple[int, ...], int]:
        """The rule of a unit, which of its inputs are stacked, its shape, and the axis of its members."""
        first, n = unit[0], len(unit)
        if n == 1:
            return first.rule, (False,) * len(first.inputs), first.shape, 0
        if first.rule is None:
            return None, (), (n, *first.shape), 0
        inputs = range(len(first.inputs))
        differ = [len({self._signature(node.inputs[i].expr) for node in unit}) > 1 for i in inputs]
        rule, many, axis = first.rule.stacked(n, differ)
        return rule, many, (*first.shape[:axis], n, *first.shape[axis:]), axis

    def _node(self, u: int) -> Node:
        unit, (rule, many, shape, _) = self._units[u], self._forms[u]
        first = unit[0]
        if len(unit) == 1:
            return dataclasses.replace(first.rewired(self), index=u)
        exprs = [[node.inputs[i].expr for node in unit] for i in range(len(first.inputs))]
        inputs = tuple(
            Wire(self._stack(members) if stack else self(members[0]))
            for members, stack in zip(exprs, many, strict=True)
        )
        name = f"{first.name}…{unit[-1].name}"
        return Node(u, name, rule, inputs, shape, first.dtype, first.line)

    def look(self, expr: Expr) -> Expr:
        if expr.depends and expr.call is not None and expr.call.key == layout.STACK:
            return self._stack(expr.call.args)
        return super().look(expr)

    # --- Many expressions as one ---

    def _stack(self, exprs: Sequence[Expr]) -> Expr:
        """Expressions of the original graph along a new first axis."""
        parts, start = list[Expr](), 0
        while start < len(exprs):
            end = self._run(exprs, start)
            built, batched = self._build(exprs[start:end])
            parts.append(built if batched else layout.broadcast(built, (end - start, *built.shape)))
            start = end
        whole, *more = parts
        return layout.apply("concatenate", _concatenate, *parts, key=("join",)) if more else whole

    def _run(self, exprs: Sequence[Expr], start: int) -> int:
        """The end of the run of alike expressions that read neighbours, or the same."""
        steps: tuple[int, ...] | None = None
        end = start + 1
        while end < len(exprs):
            before, leaves = self._skeleton(exprs[end - 1])
            after, next_leaves = self._skeleton(exprs[end])
            if before != after:
                break
            now = tuple(b - a for a, b in zip(self._places(leaves), self._places(next_leaves), strict=True))
            if any(step not in (0, 1) for step in now) or (steps is not None and now != steps):
                break
            steps = now
            end += 1
        return end

    def _places(self, leaves: Sequence[Expr]) -> list[int]:
        found = map(self._skeleton.place, leaves)
        return [place[1] for place in found if place is not None]

    def _build(self, exprs: Sequence[Expr]) -> tuple[Expr, bool]:
        """A run as one expression, and whether it has a new first axis (not if all are the same)."""
        first = exprs[0]
        if len({self._signature(expr) for expr in exprs}) == 1:
            return self(first), False
        if not first.depends:
            if any(map(layout.needs_of, exprs)):
                return layout.stack(*map(self, exprs)), True
            return together(exprs, self._signature)
        place = self._skeleton.place(first)
        if place is not None:
            u, p, axis = place
            axis = self._forms[u][3] if axis is None else axis
            whole = self._outputs[u]
            return neighbours(whole, p, len(exprs), axis), True
        calls = [expr.call for expr in exprs if expr.call is not None]
        built = [self._build(args) for args in zip(*(call.args for call in calls), strict=True)]
        return mapped(exprs, built), True


def _concatenate(*arrays: jax.Array) -> jax.Array:
    if not several():
        return jnp.concatenate(arrays)
    # Where stacks are divided among devices, neighbours then exchange what crosses their border, and no more.
    ends = list(itertools.accumulate(len(a) for a in arrays))
    zero = np.zeros((), arrays[0].dtype)
    padded = (
        lax.pad(a, zero, [(end - len(a), ends[-1] - end, 0), *[(0, 0, 0)] * (a.ndim - 1)])
        for a, end in zip(arrays, ends, strict=True)
    )
    return functools.reduce(operator.add, padded)
