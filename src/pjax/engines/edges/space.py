"""The edges of a whole graph, one object per operation, and the projections onto sets of nodes."""

import copy
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from pjax.devices import chooses_orders
from pjax.engines import extrapolation
from pjax.engines.edges.factored import Factored
from pjax.engines.edges.stored import Linear, Split, Stored
from pjax.engines.point import Problem, add
from pjax.graph import fan_out
from pjax.graph.nodes import Graph, Node

Edges: TypeAlias = Stored | Split | Factored
AllEdges: TypeAlias = dict[int, Edges]


def combine(*terms: tuple[float, AllEdges]) -> AllEdges:
    """A linear combination of states, edge by edge."""

    def one(v: int) -> Edges:
        kind: Any = type(terms[0][1][v])
        return kind.combine([(factor, state[v]) for factor, state in terms])

    return {v: one(v) for v in terms[0][1]}


# Contractions with at most this many edges per scalar of their inputs and output store them.
CHEAP = 12
# The same for a contraction next to a target: there the history fades slowly.
CHEAP_AT_TARGET = 64


def histories(problem: Problem, length: int | None) -> dict[int, int | None]:
    """For each contraction, the length of its history; None where its edges are stored.

    That is where it is cheap, and where it was found that a short history neglects too much.
    """
    graph, chosen = problem.graph, dict[int, int | None]()
    near = _next_to_targets(graph)
    for node in graph.nodes:
        if node.rule is None or not node.rule.many_edges:
            continue
        if length is not None:
            chosen[node.index] = length
            continue
        scalars = math.prod(node.shape) + sum(math.prod(w.shape) for w in node.wires)
        bound = CHEAP_AT_TARGET if node.index in near else CHEAP
        if node.rule.windowed and node.index not in near:
            bound = 0  # written out, they take all the overlapping windows
        stored = fan_out.entering(node, 0) <= bound * scalars or node.index in problem.stored
        chosen[node.index] = None if stored else 2 if node.index in near else 1
    return chosen


def _next_to_targets(graph: Graph) -> set[int]:
    """The contractions from which a target can be reached without passing another contraction."""
    found, ahead = set[int](), [node.index for node in graph.targets]
    while ahead:
        for source in {s for wire in graph.nodes[ahead.pop()].wires for s in wire.sources} - found:
            found.add(source)
            rule = graph.nodes[source].rule
            if rule is not None and not rule.many_edges:
                ahead.append(source)
    return found


class EdgeSpace:
    """The edges of a graph, and the projections onto the sets of its partition."""

    def __init__(self, problem: Problem, history: dict[int, int | None] | None = None) -> None:
        """``history`` is what `histories` returns; without it every edge is stored."""
        self.problem = problem
        # With one input fixed a history of one term is exact.
        fixed = [v for v in history or {} if problem.fixed(problem.graph.nodes[v]) is not None]
        self._history = {**(history or {}), **dict.fromkeys(fixed, 1)}
        self.cut = tuple(v for v, length in self._history.items() if length is not None and v not in fixed)
        """The nodes whose histories neglect something."""
        self._sets = problem.partition.sets
        self._set_of = problem.partition.set_of()
        ordered = problem.graph.nodes if chooses_orders() else ()
        behind = {n.index: getattr(n.rule, "behind", 0) for n in ordered}
        self._behind = {v: axes for v, axes in behind.items() if axes}
        """How many axes lie behind those of a node's vectors, where there are such."""
        self._kept_inputs = {v: _to_front(problem.inputs[v][0], axes) for v, axes in self._behind.items()}

    def start(self) -> AllEdges:
        """All edges at the forward evaluation."""
        graph, problem = self.problem.graph, self.problem
        state: AllEdges = {}
        for node in graph.nodes:
            if node.is_parameter:
                continue
            shifts = [None if w.constant else problem.zeros(node.index, i) for i, w in enumerate(node.wires)]
            edges = self._spread(node, shifts)
            state[node.index] = edges.written(problem, node) if isinstance(edges, Split) else edges
        return self.settle(state)[0]

    def _spread(self, node: Node, shifts: Sequence[jax.Array | None]) -> Edges:
        kind: type[Edges] = Stored
        if node.index in self._history:
            kind = Split if self._history[node.index] is None else Factored
        return kind.spread(self.problem, node, shifts)

    def settle(self, state: AllEdges) -> tuple[AllEdges, dict[int, jax.Array]]:
        """Cut histories to their length. Returns the largest neglected terms, relative, as well."""
        settled = {v: edges.settled(self._history.get(v) or 0) for v, edges in state.items()}
        return {v: edges for v, (edges, _) in settled.items()}, {v: settled[v][1] for v in self.cut}

    # --- In loops ---
    #
    # Where a compiler chooses the order in which axes lie in memory, it does not for what a loop keeps: that
    # lies in the order of its axes. So vectors that come with other axes behind theirs are kept so.

    def kept(self, state: AllEdges) -> AllEdges:
        """The state as a loop keeps it."""
        return self.problem.narrow(self._turned(state, _to_front))

    def used(self, kept: AllEdges) -> AllEdges:
        """The state to compute with: wide, but for those arrays that are read as they are kept."""
        wide: dict[int, Any] = self._turned(self.problem.widen(kept), _to_end)
        splits = {v: edges for v, edges in kept.items() if isinstance(edges, Split)}
        return wide | {v: dataclasses.replace(wide[v], rest=edges.rest) for v, edges in splits.items()}

    def _turned(self, state: AllEdges, turn: Callable[..., jax.Array]) -> AllEdges:
        return state | {
            v: jax.tree.map(functools.partial(turn, behind=axes), state[v])
            for v, axes in self._behind.items()
        }

    def inside(self, kept: AllEdges) -> tuple["EdgeSpace", AllEdges]:
        """This space inside a loop, and the state that the loop kept."""
        if not self._behind:
            return self, self.used(kept)
        inputs, kept = jax.lax.optimization_barrier((self._kept_inputs, kept))
        space = copy.copy(self)
        space.problem = copy.copy(self.problem)
        turned = {v: (_to_end(x, self._behind[v]),) for v, x in inputs.items()}
        space.problem.inputs = {**self.problem.inputs, **turned}
        return space, self.used(kept)

    def means(self, nodes: Sequence[int], state: AllEdges) -> dict[int, jax.Array]:
        """For each node, the mean of the edges that leave it."""
        problem = self.problem
        wanted = set(nodes)
        totals: dict[int, jax.Array] = {}
        for r, i in sorted({pair for v in nodes for pair in problem.graph.readers[v]}):
            parts = problem.pull(r, i, state[r].sums(problem, problem.graph.nodes[r], i))
            add(totals, [(s, part) for s, part in parts if s in wanted])
        return problem.means(totals)

    def project(self, k: int, state: AllEdges) -> AllEdges:
        """The projection onto set k: its operations move their inputs, its nodes overwrite what they send."""
        return self.measured(k, state)[0]

    def measured(self, k: int, state: AllEdges) -> tuple[AllEdges, jax.Array]:
        """The same, and the sum over the set's nodes of the squared moves of their edges."""
        problem, graph = self.problem, self.problem.graph
        new = dict(state)
        values = self.means(self._sets[k], state)
        squared = jnp.zeros((), problem.dtype)
        for v in self._sets[k]:
            node = graph.nodes[v]
            if node.is_parameter:
                continue
            goal, unit = values.get(v), problem.units.get(v)
            if unit is None or goal is None:
                new[v], moves = state[v].displaced(problem, node, goal)
            else:
                new[v], moves = state[v].displaced(problem, node, goal * unit)
                moves = moves.over(unit)
            squared += problem.squared(v, moves)
            if moves.output is not None:
                values[v] = values[v] + moves.output
        for node in graph.nodes:
            if not node.is_parameter and self._set_of[node.index] != k:
                new[node.index] = self._overwritten(k, node, new[node.index], values)
        return new, squared

    def shifted(self, state: AllEdges, moves: dict[int, jax.Array]) -> AllEdges:
        """The state with all edges that leave some nodes moved on."""
        readers = {reader for s in moves for reader, _ in self.problem.graph.readers[s]}
        return self.settle(state | {v: self._moved(v, state[v], moves) for v in readers})[0]

    def _moved(self, v: int, edges: Any, moves: dict[int, jax.Array]) -> Edges:
        """The edges into a node, moved on with those sources that move."""
        problem, node = self.problem, self.problem.graph.nodes[v]
        still = {s: jnp.zeros_like(problem.points[s]) for wire in node.wires for s in wire.sources}
        on = self._spread(node, problem.shifts(v, still | moves))
        return edges.combine([(1, edges), (1, on)])

    def extrapolated(self, k: int, before: AllEdges, after: AllEdges) -> AllEdges:
        """The state after the projection onto set k, extrapolated: see `pjax.engines.extrapolation`.

        The edges into the nodes of the set move further, so that the mean of the edges of each source moves
        as far as its factor says. For stored edges only.
        """
        problem, graph = self.problem, self.problem.graph
        sums: dict[int, dict[int, jax.Array]] = {0: {}, 1: {}, 2: {}}  # of powers of the moves
        ours = [v for v in self._sets[k] if v in after]
        for v in ours:
            node, old, new = graph.nodes[v], before[v], after[v]
            assert node.rule is not None and isinstance(old, Stored) and isinstance(new, Stored)
            for i in range(len(node.wires)):
                move = new.arrays[i].value - old.arrays[i].value
                for power, totals in sums.items():
                    add(totals, problem.pull(v, i, node.rule.gather(i, move**power), power))
        more: dict[int, jax.Array] = {}
        for s, mean in problem.means(sums[1]).items():
            count = jnp.maximum(sums[0][s], 1)
            grow = extrapolation.factor(problem, s, mean, problem.over_members(s, sums[2][s])) - 1
            more[s] = grow * mean * problem.counts[s] / count
        return after | {v: self._moved(v, after[v], more) for v in ours}

    def _overwritten(self, k: int, node: Node, edges: Edges, values: dict[int, jax.Array]) -> Edges:
        """The edges into a node after its sources in set k have projected."""
        sources = {s for wire in node.wires for s in wire.sources}
        ours = {s for s in sources if self._set_of[s] == k}
        # The constants of a node project with the set after its own.
        constants = (self._set_of[node.index] + 1) % len(self._sets) == k
        problem = self.problem
        if ours == sources and constants:
            return self._spread(node, problem.shifts(node.index, values))
        if not ours and not constants:
            return edges
        assert node.rule is not None and isinstance(edges, Stored)
        zeros = {s: jnp.zeros_like(problem.points[s]) for s in sources}
        every = {s: jnp.ones_like(z) for s, z in zeros.items()}
        arrays = []
        for i, old in enumerate(edges.arrays):

            def pushed(start: dict[int, jax.Array], i: int = i) -> jax.Array:
                """Displacements of sources as the edges of input i see them; zero for those of constants."""
                assert node.rule is not None
                seen = problem.push(node.index, i, start)
                return node.rule.expand(i, problem.zeros(node.index, i) if seen is None else seen)

            mine = pushed(zeros | {s: every[s] for s in ours}) > 0
            if constants:  # also the slots beyond the border of a convolution
                mine |= pushed(every) == 0
            fresh = pushed(zeros | {s: values[s] for s in ours})
            arrays.append(Linear.of(jnp.where(mine, fresh, old.value)))
        return Stored(tuple(arrays))

    def distance(self, first: AllEdges, second: AllEdges) -> jax.Array:
        """The squared distance of two states."""
        apart = combine((1, first), (-1, second))
        nodes = self.problem.graph.nodes
        squares = ((v, edges.squared(self.problem, nodes[v])) for v, edges in apart.items())
        parts = [jnp.sum(x / self.problem.units.get(v, 1)) for v, x in squares]
        return functools.reduce(operator.add, parts)


def _to_front(x: jax.Array, behind: int) -> jax.Array:
    """With the last axis before others."""
    return jnp.moveaxis(x, -1, -1 - behind)


def _to_end(x: jax.Array, behind: int) -> jax.Array:
    """The inverse of `_to_front`."""
    return jnp.moveaxis(x, -1 - behind, -1)


# --- Methods that are written as maps on edges ---


class EdgeState(NamedTuple):
    """What such a method carries from step to step: see `pjax.optim.solver.Iteration`."""

    edges: AllEdges
    """As a loop keeps them: see `EdgeSpace.kept`."""
    squared: jax.Array
    neglected: dict[int, jax.Array]


@dataclasses.dataclass(frozen=True)
class EdgeIteration:
    """A method that is written as a map on edges."""

    space: EdgeSpace
    advance: Callable[[EdgeSpace, AllEdges], tuple[AllEdges, Callable[[], jax.Array]]]
    """A step, and the squared violation that it saw."""
    shadow: Callable[[EdgeSpace, AllEdges], AllEdges] = lambda _, z: z
    """From a state to the point that the method converges to, where that is not the state itself."""
    measure: bool = False

    def start(self) -> EdgeState:
        zero = jnp.zeros((), self.space.problem.dtype)
        nothing = {v: jnp.zeros((), jnp.float32) for v in self.space.cut}
        return EdgeState(self.space.kept(self.space.start()), zero, nothing)

    def step(self, state: EdgeState) -> EdgeState:
        space, edges = self.space.inside(state.edges)
        edges, violation = self.advance(space, edges)
        squared = violation() if self.measure else jnp.zeros((), space.problem.dtype)
        edges, neglected = space.settle(edges)
        worst = {v: jnp.maximum(state.neglected[v], x) for v, x in neglected.items()}
        return EdgeState(space.kept(edges), squared, worst)

    def values(self, state: EdgeState) -> dict[int, jax.Array]:
        return self._means(state, lambda node: not node.is_target)

    def parameters(self, state: EdgeState) -> dict[int, jax.Array]:
        return self._means(state, lambda node: node.is_parameter)

    def _means(self, state: EdgeState, wanted: Callable[[Node], bool]) -> dict[int, jax.Array]:
        edges = self.shadow(self.space, self.space.used(state.edges))
        graph = self.space.problem.graph
        nodes = [n.index for n in graph.nodes if wanted(n) and graph.readers[n.index]]
        return self.space.means(nodes, edges)

    def agreed(self, state: EdgeState, mean: Callable[[jax.Array], jax.Array]) -> EdgeState:
        apart = {v: mean(move) - move for v, move in self.parameters(state).items()}
        moved = self.space.shifted(self.space.used(state.edges), apart)
        return state._replace(edges=self.space.kept(moved))
