"""The values of a stacked graph.

A stack whose members do not read each other is evaluated at once. Stacks that read each other, such as the
time steps of a recurrent network or the layers of a deep one, are evaluated one step after the other: where
the steps are alike by a scan, so that the program does not grow with their number, else member by member.
"""

import bisect
import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pjax.graph.stack.alike import Signatures, Skeletons, together
from pjax.graph.wires import Evaluator, Expr, needs_of

if TYPE_CHECKING:
    from pjax.graph.stack.stacking import StackedGraph

FEWEST = 4
"""Steps for which a scan is worth it."""


def evaluate(
    graph: "StackedGraph", constants: Sequence[Any], leaves: Sequence[Any]
) -> tuple[Evaluator, dict[int, Any]]:
    """An evaluator of expressions of the stacked graph, and the values by node."""
    values: dict[int, Any] = {}
    evaluator = Evaluator(constants, values)
    skeletons = Skeletons(graph.members)
    given = dict(zip(graph.original.leaves, leaves, strict=True))
    for v, unit in enumerate(graph.members):
        if unit[0] in given:
            values[v] = _together([given[node] for node in unit], graph.axes[v])
    for units in _order(graph):
        node = graph.nodes[units[0]]
        if len(units) == 1 and not any(node.index in wire.needs for wire in node.inputs):
            if node.rule is not None:
                values[node.index] = node.rule.forward(*evaluator.each(node.inputs))
        else:
            own = _Members(graph, values, skeletons.places)
            values.update(_Chain(graph, units, skeletons).values(constants, own))
    return evaluator, values


def _together(values: Sequence[Any], axis: int) -> Any:
    return values[0] if len(values) == 1 else jnp.stack(values, axis)


def _order(graph: "StackedGraph") -> list[tuple[int, ...]]:
    """The stacks, each after all that it reads; those that read each other together."""
    reads = {node.index: {s for wire in node.inputs for s in wire.needs} for node in graph.nodes}
    below, before = {v: 1 << v for v in reads}, dict[int, int]()  # a bit for each stack, the own one too
    while below != before:
        before = dict(below)
        for v, sources in reads.items():
            below[v] = functools.reduce(operator.or_, (below[s] for s in sources), below[v])
    groups: dict[int, list[int]] = {}
    for v, bits in below.items():
        groups.setdefault(bits, []).append(v)
    return [tuple(groups[bits]) for bits in sorted(groups, key=int.bit_count)]


class _Members(dict[int, Any]):
    """Values of nodes of the original graph. Those that are not here are found in the values of stacks."""

    def __init__(
        self, graph: "StackedGraph", values: Mapping[int, Any], places: Mapping[int, tuple[int, int]]
    ) -> None:
        super().__init__()
        self._graph = graph
        self._values = values
        self._places = places

    def slice(self, start: int, length: int) -> jax.Array:
        """The values of some neighbours in a stack, along the first axis."""
        v, p = self._places[start]
        axis = self._graph.axes[v]
        return jnp.moveaxis(lax.slice_in_dim(self._values[v], p, p + length, axis=axis), axis, 0)

    def __missing__(self, node: int) -> Any:
        v, p = self._places[node]
        if len(self._graph.members[v]) == 1:
            return self._values[v]
        return lax.index_in_dim(self._values[v], p, self._graph.axes[v], keepdims=False)


class _Leaf(NamedTuple):
    """What stands in the place of a leaf of an expression, for every step of a scan."""

    over: tuple[Expr, ...]
    """Constants, members of a stack, or entries of an array."""
    unit: int = -1
    back: int = 0
    """The stack of the chain whose members they are, of this step or of the one before; -1 where of none."""


class _Chain:
    """Stacks that read each other."""

    def __init__(self, graph: "StackedGraph", units: Sequence[int], skeletons: Skeletons) -> None:
        self._graph = graph
        self._units = units
        self._skeletons = skeletons
        self._signature = Signatures()
        self._nodes = sorted(node for u in units for node in graph.members[u])
        anchors = max((graph.members[u] for u in units), key=len)
        self._step = {node: bisect.bisect_right(anchors, node) - 1 for node in self._nodes}
        self._steps: dict[int, list[int]] = {}
        for node in self._nodes:
            self._steps.setdefault(self._step[node], []).append(node)

    def values(self, constants: Sequence[Any], own: _Members) -> dict[int, Any]:
        """The values of the stacks. Those of their members that are found one by one are added to ``own``."""
        alone = Evaluator(constants, own)
        first, last, leaves = self._alike()
        scanned: dict[int, Any] = {}
        for step, nodes in sorted(self._steps.items()):
            if step == first and last - first >= FEWEST:
                scanned = self._scan(first, last, leaves, alone, own)
            if scanned and first <= step < last:
                continue
            for v in nodes:
                node = self._graph.original.nodes[v]
                assert node.rule is not None
                for source in {
                    s for wire in node.inputs for s in wire.needs
                } & self._step.keys() - own.keys():
                    own[source] = scanned[self._unit(source)][self._step[source] - first]
                own[v] = node.rule.forward(*alone.each(node.inputs))
        return {u: self._stack(u, own, scanned, first) for u in self._units}

    def _stack(self, u: int, own: Mapping[int, Any], scanned: Mapping[int, Any], first: int) -> Any:
        nodes, axis = self._graph.members[u], self._graph.axes[u]
        if u not in scanned:
            return _together([own[node] for node in nodes], axis)
        inside = scanned[u]
        before = [own[node][None] for node in nodes if self._step[node] < first]
        after = [own[node][None] for node in nodes if self._step[node] >= first + len(inside)]
        return jnp.moveaxis(jnp.concatenate([*before, inside, *after]), 0, axis)

    # --- Which steps are alike ---

    def _alike(self) -> tuple[int, int, dict[int, _Leaf]]:
        """The longest run of alike steps, from and to, and what they read; see `_leaves`."""
        best: tuple[int, int, dict[int, _Leaf]] = (0, 0, {})
        for _, run in itertools.groupby(sorted(self._steps), self._kind):
            start, *others = run
            end = start + 1 + len(others)
            if end - start > best[1] - best[0] and (leaves := self._leaves(start, end)) is not None:
                best = (start, end, leaves)
        return best

    def _kind(self, step: int) -> Any:
        """A key that is the same for steps that are alike."""
        nodes = [self._graph.original.nodes[v] for v in self._steps[step]]
        units = [self._unit(node.index) for node in nodes]
        if len(set(units)) < len(units):
            return step
        return units, [[self._skeletons(wire.expr)[0] for wire in node.inputs] for node in nodes]

    def _leaves(self, start: int, end: int) -> dict[int, _Leaf] | None:
        """What stands for each leaf of the first step, by its identity; None where that varies."""
        found: dict[int, _Leaf] = {}
        for column in zip(*(self._steps[step] for step in range(start, end)), strict=True):
            for wires in zip(*(self._graph.original.nodes[v].inputs for v in column), strict=True):
                for slot in zip(*(self._skeletons(wire.expr)[1] for wire in wires), strict=True):
                    leaf = self._leaf(slot, start)
                    if leaf is None:
                        return None
                    other = found.setdefault(id(slot[0]), leaf)
                    if list(map(self._signature, other.over)) != list(map(self._signature, slot)):
                        return None
        return found

    def _leaf(self, slot: tuple[Expr, ...], start: int) -> _Leaf | None:
        nodes = [leaf.node for leaf in slot if leaf.node is not None]
        if any(needs_of(leaf) & self._step.keys() for leaf in slot if leaf.node is None):
            return None  # held, and known only when the step before has been evaluated
        if not nodes:
            return _Leaf(slot)
        unit = self._unit(nodes[0])
        if unit in self._units:
            backs = {start + i - self._step[node] for i, node in enumerate(nodes)}
            before = [self._step[node] for node in self._graph.members[unit]].count(start - 1)
            fits = backs == {0} or (backs == {1} and before == 1)
            return _Leaf(slot, unit, backs.pop()) if fits else None
        places = [self._skeletons.places[node][1] for node in nodes]
        moves = {b - a for a, b in itertools.pairwise(places)}
        return _Leaf(slot) if moves in ({0}, {1}) else None

    def _unit(self, node: int) -> int:
        return self._skeletons.places[node][0]

    # --- The scan ---

    def _scan(
        self, first: int, last: int, leaves: dict[int, _Leaf], alone: Evaluator, own: _Members
    ) -> dict[int, Any]:
        """The values of the steps from first to last, by stack."""
        fixed: dict[int, Any] = {}
        sliced: dict[int, Any] = {}
        for i, (over, unit, _) in leaves.items():
            at = over[0]
            if unit >= 0:
                continue
            if len({self._signature(expr) for expr in over}) == 1:
                fixed[i] = alone(at)
            elif at.node is not None:
                sliced[i] = own.slice(at.node, last - first).astype(at.dtype)
            else:
                sliced[i] = alone(together(over, self._signature)[0])
        running = [(i, leaf) for i, leaf in leaves.items() if leaf.unit >= 0]

        def seen(values: Mapping[int, Any], back: int) -> dict[int, Any]:
            """What stands for the leaves that are members of the chain."""
            of_step = [(i, leaf) for i, leaf in running if leaf.back == back and leaf.unit in values]
            return {i: values[leaf.unit].astype(leaf.over[0].dtype) for i, leaf in of_step}

        def step(before: dict[int, Any], slices: list[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
            now: dict[int, Any] = {}
            evaluator = Evaluator((), own, known=alone)
            evaluator.found |= {**fixed, **dict(zip(sliced, slices, strict=True)), **seen(before, 1)}
            for v in self._steps[first]:
                node, unit = self._graph.original.nodes[v], self._unit(v)
                assert node.rule is not None
                now[unit] = node.rule.forward(*evaluator.each(node.inputs))
                evaluator.found |= seen({unit: now[unit]}, 0)
            return {unit: now[unit] for unit in before}, now

        start = {}
        for unit in (leaf.unit for _, leaf in running if leaf.back):
            (v,) = (v for v in self._graph.members[unit] if self._step[v] == first - 1)
            start[unit] = own[v]
        _, found = lax.scan(step, start, list(sliced.values()), length=last - first)
        return dict(found)
