"""A partitioned graph at run time: the point it starts from, its wires, its fan-outs.

All engines carry *displacements* from the forward evaluation of the given parameters. That point
satisfies every constraint but the targets', so a residual is a sum of small displacements, and never
the difference of two nearly equal numbers (which matters in float32, and more with TF32 products).
"""

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.graph import fan_out
from pjax.graph.nodes import Node
from pjax.graph.partition import Partition
from pjax.graph.wires import Evaluator, Wire, Wiring, leaving, walk, wirings
from pjax.rules.arithmetic import condensed
from pjax.rules.base import Moves, Place

S = TypeVar("S")


def add(totals: dict[int, Any], parts: Iterable[tuple[int, Any]]) -> None:
    """Add parts to the totals of their nodes."""
    for v, part in parts:
        totals[v] = totals[v] + part if v in totals else part


def _is_known(factors: Any) -> bool:
    """Whether they follow from the program alone."""
    return isinstance(factors, np.ndarray)


class Problem:
    """Everything about a graph that stays fixed while its edges move."""

    def __init__(
        self,
        partition: Partition,
        constants: Sequence[Any],
        leaves: Sequence[Any],
        *,
        consensus: str = "paper",
        fixed_constants: bool = False,
        balanced: bool = False,
        state_dtype: Any = None,
        stored: frozenset[int] = frozenset(),
        sweeps: bool = False,
        has_outer: bool = False,
    ) -> None:
        """A graph at the point that its constants and ``leaves``, the parameters, define.

        ``consensus``, ``fixed_constants``, ``balanced`` and ``state_dtype`` are as the options of
        `pjax.optim.solver.EdgeSolver` say.

        Args:
            partition: the graph, and which nodes project together.
            constants: what the function captured, and the batch.
            leaves: of the parameters.
            stored: contractions whose edges are stored, since a short history would neglect too much.
            sweeps: whether only soft sweeps will be made: for these edges are not counted, which takes time.
            has_outer: whether an outer optimiser chooses the steps of parameters.
        """
        self.partition = partition
        self.graph = graph = partition.graph
        self.dtype = graph.dtype
        self._state_dtype = self.dtype if state_dtype is None else state_dtype
        self.consensus = consensus
        self.fixed_constants = fixed_constants
        self.stored = stored
        self.has_outer = has_outer
        self._shardings = graph.shardings
        self.constants, self.leaves = constants, leaves
        self._scales: dict[tuple[int, int], jax.Array] = {}  # nothing stands for one
        self.units: dict[int, jax.Array] = {}
        """By what outputs are multiplied in the variables of the metric, and weights and squares divided;
        nothing stands for one."""
        if balanced:
            self._balance()
            del self.inputs
        if not sweeps:  # now, and not in every step of a loop
            _ = self.points, self.inputs, self.wirings, self._factors, self.counts, self._lengths

    @property
    def nudges(self) -> dict[int, jax.Array]:
        """Zeros for nodes of which it is to be known what a soft sweep asks of them, as `asked`."""
        return {}

    asked: dict[int, jax.Array]

    @functools.cached_property
    def _evaluated(self) -> tuple[Evaluator, dict[int, Any]]:
        return self.graph.evaluator(self.constants, self.leaves)

    @property
    def _evaluate(self) -> Evaluator:
        return self._evaluated[0]

    @functools.cached_property
    def loss(self) -> jax.Array:
        """The mean of everything that the function returns."""
        return self.graph.loss(self._evaluate)

    @property
    def still(self) -> jax.Array:
        """The violation of constraints on values that no parameter moves, without losses of factor zero."""
        if not self.graph.still:
            return jnp.zeros((), self.dtype)
        constants, values = self.constants, self._evaluated[1]
        losses = {id(expr): self._evaluate(expr) for expr in self.graph.still}
        summed = losses.keys() & set(map(id, walk(*self.graph.outputs)))

        def total(losses: dict[int, jax.Array]) -> jax.Array:
            evaluate = Evaluator(constants, values)
            evaluate.found.update(losses)
            return self.graph.loss(evaluate)

        try:
            factors = jax.grad(total)(losses)
        except (NotImplementedError, TypeError, ValueError):  # no derivative, as of a while loop: all count
            factors = jax.tree.map(jnp.ones_like, losses)
        counted = (jnp.where((factors[v] == 0) & (v in summed), 0, jnp.abs(x)) for v, x in losses.items())
        return sum((x.astype(self.dtype).sum() for x in counted), start=jnp.zeros((), self.dtype))

    @property
    def returned(self) -> tuple[jax.Array, list[Any]]:
        """The loss, and what the function returns beside, as far as the graph has it."""
        found = ((self._evaluate(expr), expr.dtype) for expr in self.graph.aux)
        return self.loss, [x if jnp.result_type(x) == dtype else x.astype(dtype) for x, dtype in found]

    def answering(
        self, wires: Sequence[Wire], softness: float
    ) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], list[jax.Array]]]:
        """What wires carry, and, from what is asked of that, what is asked of the leaves by a soft sweep.

        The function is evaluated for it, once and for all that else is asked of this problem.
        """

        def carried(leaves: Sequence[Any], nudges: Any) -> tuple[list[jax.Array], dict[int, Any]]:
            evaluate, values = self.graph.evaluator(self.constants, leaves, softness, nudges)
            return list(evaluate.each(wires)), values

        found, pull, values = jax.vjp(carried, self.leaves, self.nudges, has_aux=True)
        self._evaluated = Evaluator(self.constants, values), values

        def asked(goals: Sequence[jax.Array]) -> list[jax.Array]:
            answers, self.asked = pull([goal.astype(x.dtype) for x, goal in zip(found, goals, strict=True)])
            return [answer.astype(self.dtype) for answer in answers]

        return found, asked

    @functools.cached_property
    def points(self) -> Mapping[int, jax.Array]:
        """The values of nodes."""
        return self._points_of(self._evaluated[1])

    @functools.cached_property
    def inputs(self) -> Mapping[int, tuple[Any, ...]]:
        """What nodes read, in the variables of their metric."""
        return self._inputs_of(self._evaluate)

    def read_by(self, node: Node) -> tuple[Any, ...]:
        """What one node reads, without evaluating what all others do, as `inputs` would."""
        return tuple(map(self._work, self._evaluate.each(node.inputs)))

    @functools.cached_property
    def wirings(self) -> dict[tuple[int, int], Wiring]:
        """How displacements get to nodes, and from them."""
        nodes = self.graph.nodes
        wires = {(n.index, i): wire for n in nodes for i, wire in enumerate(n.wires)}
        return wirings(wires, [n.shape for n in nodes], self.dtype, self._evaluate)

    @functools.cached_property
    def _factors(self) -> dict[int, np.ndarray | jax.Array]:
        """By which factors the losses of each target enter what the function returns: their mean.

        Those that follow from the program alone are arrays of NumPy.
        """
        size = sum(math.prod(expr.shape) for expr in self.graph.outputs)
        found: dict[int, Any] = {}
        for expr in self.graph.outputs:
            wire = Wire(expr)
            if wire.constant or not expr.from_loss:
                continue
            share = np.full(expr.shape, 1 / size, self.graph.dtype)
            avals = [jax.ShapeDtypeStruct(self.graph.nodes[s].shape, self.graph.dtype) for s in wire.sources]
            targets = all(self.graph.nodes[s].is_target for s in wire.needs)
            if not targets or any(e.constant is not None for e in walk(expr)):
                parts: Sequence[Any] = Wiring(wire, avals, self._evaluate).pull(jnp.asarray(share))
            else:
                with jax.ensure_compile_time_eval():
                    known = Wiring(wire, avals, Evaluator((), {})).pull(jnp.asarray(share))
                    parts = [np.asarray(part) for part in known]
            add(found, zip(wire.sources, parts, strict=True))
        return found

    @functools.cached_property
    def _lengths(self) -> dict[int, tuple[jax.Array, ...]]:
        """`Rule.lengths` of nodes that read a constant, at the start: they are the same in every step."""
        return {
            n.index: n.rule.lengths(self.inputs[n.index])
            for n in self.graph.nodes
            if n.rule is not None and any(wire.constant for wire in n.wires)
        }

    def _points_of(self, values: Mapping[int, Any]) -> dict[int, jax.Array]:
        return {v: self.sharded(v, self._work(x)) for v, x in values.items()}

    def _inputs_of(self, evaluate: Evaluator) -> dict[int, tuple[Any, ...]]:
        return {
            v: tuple(self._scaled(v, i, self._work(x)) for i, x in enumerate(carried))
            for v, carried in evaluate.every({n.index: n.inputs for n in self.graph.nodes}).items()
        }

    def sharded(self, v: int, x: jax.Array) -> jax.Array:
        """A value of a node, divided among devices as it should be."""
        where = self._shardings.get(v)
        return x if where is None else jax.lax.with_sharding_constraint(x, where)

    def _balance(self) -> None:
        """Choose variables in which the two factors of each contraction have the same typical length."""
        for node in self.graph.nodes:
            if node.rule is not None:
                axis = self.graph.axis_of_members(node.index)
                scales, unit = node.rule.balance(self.inputs[node.index], axis)
                self._scales |= {(node.index, i): s for i, s in enumerate(scales) if s is not None}
                if unit is not None:
                    self.units[node.index] = unit

    def _scaled(self, v: int, i: int, x: Any) -> Any:
        """A value of input i as its node has it: in the variables of its metric."""
        scale = self._scales.get((v, i))
        return x if scale is None else x * scale

    def inside(self, state: S) -> tuple["Problem", S]:
        """This problem and the state, widened, for one step of a loop: what is cheap is computed anew in it.

        Only parameters, outputs of contractions, and outputs that are small next to their inputs stay in
        memory from step to step. The barrier makes all else depend on the state, so that the compiler does
        not move it out of the loop, and keep it after all.
        """

        def keep(node: Node) -> bool:
            if node.rule is None or node.rule.many_edges:
                return True
            read = sum(math.prod(wire.shape) for wire in node.wires)
            return not node.is_target and 8 * math.prod(node.shape) <= read

        kept, order = self._recomputed(keep)
        values, state = jax.lax.optimization_barrier(({v: self._evaluated[1][v] for v in kept}, state))
        evaluate = Evaluator((), values, known=self._evaluate)
        for v in order:
            node = self.graph.nodes[v]
            assert node.rule is not None
            values[v] = node.rule.forward(*evaluate.each(node.inputs))
        problem = copy.copy(self)
        problem.points, problem.inputs = problem._points_of(values), problem._inputs_of(evaluate)
        return problem, self.widen(state)

    def narrow(self, x: S) -> S:
        """Arrays as they are kept from step to step."""
        if self._state_dtype == self.dtype:
            return x
        return jax.tree.map(lambda a: a.astype(self._state_dtype), x)

    def kept(self, values: dict[int, jax.Array]) -> dict[int, jax.Array]:
        """Values by node as they are kept from step to step: parameters in full, since they add up."""
        nodes = self.graph.nodes
        return {v: x if nodes[v].is_parameter else self.narrow(x) for v, x in values.items()}

    def widen(self, state: S) -> S:
        """A state to compute with."""
        if self._state_dtype == self.dtype:
            return state
        return jax.tree.map(lambda x: x.astype(self.dtype) if x.dtype == self._state_dtype else x, state)

    def _recomputed(self, keep: Callable[[Node], bool]) -> tuple[list[int], list[int]]:
        """The nodes whose values are kept, and the others, in an order in which they can be evaluated.

        Stacks may read each other in turns. Then no such order exists, and more values are kept.
        """
        kept = [n.index for n in self.graph.nodes if keep(n)]
        rest = [n for n in self.graph.nodes if not keep(n) and not n.is_target]
        known, order = set(kept), []
        while rest:
            ready = [n for n in rest if all(s in known for wire in n.inputs for s in wire.sources)]
            if not ready:
                kept.append(rest[0].index)
                ready = rest[:1]
            else:
                order += [n.index for n in ready]
            known |= {n.index for n in ready}
            rest = [n for n in rest if n.index not in known]
        return kept, order

    def _work(self, x: Any) -> Any:
        x = jnp.asarray(x)
        return x.astype(self.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    # --- Fan-out ---

    @property
    def edges(self) -> int:
        """The number of edges of the graph."""
        return sum(fan_out.entering(n, i) for n in self.graph.nodes for i in range(len(n.wires)))

    @functools.cached_property
    def edge_counts(self) -> dict[tuple[int, int], int | np.ndarray]:
        """How many edges enter each slot of each input."""
        places = ((n.index, n.rule, i) for n in self.graph.nodes for i in range(len(n.wires)))
        return {(v, i): rule.count(i) for v, rule, i in places if rule is not None}

    @functools.cached_property
    def counts(self) -> dict[int, int | np.ndarray | jax.Array]:
        """How many edges leave each scalar of each node; an array need not have all axes in full."""
        totals: dict[int, Any] = {n.index: 0 for n in self.graph.nodes if not n.is_target}
        add(totals, leaving(self.wirings, self.edge_counts))
        return {v: condensed(x) if isinstance(x, np.ndarray) else x for v, x in totals.items()}

    def origins(self, v: int, i: int) -> list[tuple[int, int]] | None:
        """For each member of a node, the node and its member from which all edges into input i come.

        None where that is not known to be one, or where some come from constants.
        """
        found, node = self.graph.origins(v, i), self.graph.nodes[v]
        if found is None:
            return None
        counts = self.wirings[v, i].counts(self.edge_counts[v, i])
        if any(isinstance(count, jax.Array) for count in counts):
            return None
        shapes = [self.graph.nodes[s].shape for s in node.wires[i].sources]
        leaving = sum(fan_out.total(c, shape) for c, shape in zip(counts, shapes, strict=True))
        return found if leaving == fan_out.entering(node, i) else None

    def over_members(self, v: int, x: jax.Array) -> jax.Array:
        """The sum of what there is for each number of a node: one for each member of a stack."""
        axis = self.graph.axis_of_members(v)
        return jnp.sum(x, tuple(d for d in range(x.ndim) if d != axis))

    def means(self, totals: Mapping[int, jax.Array]) -> dict[int, jax.Array]:
        """Sums over the edges that leave nodes, as means; zero where nobody reads."""
        counts = {v: self.counts[v] for v in totals}
        least = {v: c if isinstance(c, int) else jnp.maximum(c, 1) for v, c in counts.items()}
        return {v: self.sharded(v, total / least[v]) for v, total in totals.items()}

    def weight(self, v: int) -> Any:
        """The weight of a node's output in its projection."""
        count = self.counts[v]
        if self.consensus == "paper":
            return 1.0
        return float(count) if isinstance(count, int) else jnp.maximum(count, 1)

    def read(self, v: int) -> jax.Array | None:
        """Which scalars of a node are read at all; None where all are."""
        count = self.counts[v]
        if isinstance(count, int) or (isinstance(count, np.ndarray) and count.min() > 0):
            return None
        return jnp.asarray(count > 0)

    # --- Losses ---

    def factor(self, node: Node) -> jax.Array | None:
        """The factors of a target's losses; None where none of them counts."""
        found = self._factors.get(node.index)
        if found is None or (_is_known(found) and not found.any()):
            return None
        return jnp.asarray(found)

    def is_masked(self, node: Node) -> bool:
        """Whether some losses of a target may count by zero, where others count."""
        found = self._factors.get(node.index)
        return not (isinstance(found, np.ndarray) and found.all())

    def _relative(self, node: Node) -> float | jax.Array:
        """The factors of a target's losses, next to the largest of those with a scale; a number if all agree.

        Those of a target without a scale matter only where they are zero.
        """
        mine = self._factors.get(node.index)
        if mine is None:
            return 0.0
        rule: Any = node.rule
        if getattr(rule, "scale", None) is None:
            counts = mine != 0
            same = _is_known(mine) and counts.all() == counts.any()
            return float(counts.all()) if same else jnp.asarray(counts, self.dtype)
        scaled = [n for n in self.graph.targets if getattr(n.rule, "scale", None) is not None]
        every = [self._factors[n.index] for n in scaled if n.index in self._factors]
        known = all(map(_is_known, every))
        xp: Any = np if known else jnp
        most = functools.reduce(xp.maximum, (xp.max(xp.abs(f), initial=0) for f in every))
        share = mine / xp.where(most > 0, most, xp.ones_like(most))
        if not known:
            return share
        share = np.where(np.abs(share - 1) < 1e-5, 1, share)
        return float(share.flat[0]) if share.size and np.ptp(share) == 0 else jnp.asarray(share)

    # --- Projections ---

    def push(self, v: int, i: int, value: Mapping[int, jax.Array]) -> jax.Array | None:
        """The displacements that input i of a node sees; None for a constant."""
        wiring = self.wirings.get((v, i))
        if wiring is None:
            return None
        return self._scaled(v, i, wiring.push(*(value[s] for s in wiring.wire.sources)))

    def shifts(self, v: int, value: Mapping[int, jax.Array]) -> tuple[jax.Array | None, ...]:
        """The displacements that the inputs of a node see; None for constants."""
        return tuple(self.push(v, i, value) for i in range(len(self.graph.nodes[v].wires)))

    def send(self, v: int, totals: Iterable[jax.Array | None], to: dict[int, jax.Array]) -> None:
        """Add what the inputs of a node ask of their sources, see `pull`, to what is asked of these."""
        for i, total in enumerate(totals):
            add(to, self.pull(v, i, total))

    def pull(self, v: int, i: int, total: jax.Array | None, power: int = 1) -> list[tuple[int, jax.Array]]:
        """The sources of input i of a node, each with what sums over its slots come to for its scalars.

        The total is for each slot a sum over its edges, to a power; None for constants.
        """
        wiring = self.wirings.get((v, i))
        if wiring is None or total is None:
            return []
        if (v, i) in self._scales:
            total = total / self.scale(v, i) ** power
        return list(zip(wiring.wire.sources, wiring.pull(total), strict=True))

    def scale(self, v: int, i: int) -> float | jax.Array:
        """How many times longer input i of a node is in the variables of its metric."""
        return self._scales.get((v, i), 1.0)

    def zeros(self, v: int, i: int) -> jax.Array:
        """No displacement at all, in the shape of an input."""
        return jnp.zeros(self.graph.nodes[v].inputs[i].shape, self.dtype)

    def project(self, v: int, shifts: tuple[jax.Array | None, ...], goal: jax.Array | None) -> Moves:
        """Project an operation or a target: see `Rule.move`."""
        rule = self.graph.nodes[v].rule
        assert rule is not None
        unit = self.units.get(v)
        if unit is None or goal is None:
            return rule.move(self.place(v), shifts, goal)
        return rule.move(self.place(v), shifts, goal * unit).over(unit)

    def place(self, v: int) -> Place:
        """What a rule needs to know of its node to project."""
        node, inputs = self.graph.nodes[v], self.inputs[v]
        if node.is_target:  # which has no output that edges could leave
            return Place(inputs, jnp.zeros((), self.dtype), factor=self._relative(node))
        point, weight, unit = self.points[v], self.weight(v), self.units.get(v)
        if unit is not None:
            point, weight = point * unit, weight / unit
        return Place(inputs, point, weight, self.read(v), self.fixed(node), self._lengths.get(v, ()))

    def squared(self, v: int, moves: Moves) -> jax.Array:
        """How far a projection moved the edges of a node, in and out, squared."""
        squared = jnp.sum(moves.squared)
        return squared if moves.output is None else squared + (moves.output**2 * self.counts[v]).sum()

    def fixed(self, node: Node) -> int | None:
        """Which input of a product keeps its value, where constants are fixed."""
        constant = [i for i, wire in enumerate(node.wires) if wire.constant]
        return constant[0] if self.fixed_constants and constant else None
