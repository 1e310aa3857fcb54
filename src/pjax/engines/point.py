"""A partitioned graph at run time: the point it starts from, its wires, its fan-outs.

All engines carry *displacements* from the forward evaluation of the given parameters. That point
satisfies every constraint but the targets', so a residual is a sum of small displacements, and never
the difference of two nearly equal numbers (which matters in float32, and more with TF32 products).
"""

import copy
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.devices import end_kernel, on_one_device
from pjax.graph import fan_out
from pjax.graph.nodes import Node
from pjax.graph.partition import Partition
from pjax.graph.wires import Evaluator, Wire, Wiring, condensed, walk
from pjax.rules import Dot, Primitive, Target
from pjax.rules.base import Arrays
from pjax.rules.contraction import Contraction
from pjax.rules.dot import Multiplier, multiplier, sum_and_difference, visible
from pjax.sets import Constrain

S = TypeVar("S")
TINY = 1e-12


class Moves(NamedTuple):
    """What a projection does to a node."""

    inputs: tuple[jax.Array | None, ...]
    """For each slot of each input, the sum of the moves of its edges; None for constants."""
    output: jax.Array | None
    squared: jax.Array
    """The sum of the squared moves of all edges of all inputs."""
    squares: Callable[[int, bool], jax.Array] | None = None
    """For each slot of an input, the sum of the squared moves of its edges; or, if the flag is set, the sum
    over all of its slots, which costs less."""
    reach: Callable[[jax.Array], jax.Array] | None = None
    """Where the output then is, given what was asked of it. None where that is for the caller to add up."""


def total_squares(arrays: Iterable[jax.Array]) -> jax.Array:
    """The sum of the squares of all values."""
    return functools.reduce(operator.add, ((a * a).sum() for a in arrays), jnp.zeros(()))


def add(totals: dict[int, Any], parts: Iterable[tuple[int, Any]]) -> None:
    """Add what belongs to nodes to what there is for them."""
    for v, part in parts:
        totals[v] = totals[v] + part if v in totals else part


def _sum_if(whole: bool, x: jax.Array) -> jax.Array:
    return x.sum() if whole else x


def balance(xx: jax.Array, yy: jax.Array) -> jax.Array:
    """s² = |y| / |x| of typical lengths, from the squared lengths of the factors of many dot products.

    A factor that is nearly zero, such as weights that start there, is taken for larger: it must move.
    """
    mean_x, mean_y = jnp.mean(xx), jnp.mean(yy)
    least = TINY + 1e-6 * jnp.maximum(mean_x, mean_y)
    return jnp.sqrt(jnp.maximum(mean_y, least) / jnp.maximum(mean_x, least))


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
    ) -> None:
        """``stored`` are contractions whose edges must be kept as they are."""
        self.partition = partition
        self.graph = graph = partition.graph
        self.dtype = graph.dtype
        self._state_dtype = self.dtype if state_dtype is None else state_dtype
        self.consensus = consensus
        self.fixed_constants = fixed_constants
        self.stored = stored
        evaluate, values = graph.evaluator(constants, leaves)
        self._evaluate, self._values = evaluate, values
        self.loss = graph.loss(evaluate)
        self._scales: dict[tuple[int, int], jax.Array] = {}  # nothing stands for one
        self._place_at(evaluate, values)
        if balanced:
            self._balance()
            self._place_at(evaluate, values)
        self.wirings: dict[tuple[int, int], Wiring] = {}
        for n in graph.nodes:
            for i, wire in enumerate(n.wires):
                if not wire.constant:
                    self.wirings[n.index, i] = self._wiring(wire)
        self.edge_counts = {
            (n.index, i): fan_out.each(n, i) for n in graph.nodes for i in range(len(n.wires))
        }
        self.counts = self._count()
        self._factors = self._weigh()
        # Squared lengths of the inputs of contractions that do not change: of constants, and of where the
        # factor of a constant starts from. Computed here, outside the loop.
        self._norms = {
            (n.index, i): n.rule.reduce(i, self.inputs[n.index][i] ** 2)
            for n in graph.nodes
            for i in range(len(n.wires))
            if isinstance(n.rule, Contraction) and any(wire.constant for wire in n.wires)
        }

    def _wiring(self, wire: Wire) -> Wiring:
        avals = [jax.ShapeDtypeStruct(self.graph.nodes[s].shape, self.dtype) for s in wire.sources]
        return Wiring(wire, avals, self._evaluate)

    def _place_at(self, evaluate: Evaluator, values: Mapping[int, Any]) -> None:
        self.points: Mapping[int, jax.Array] = {
            v: self.graph.placed(v, self._work(x)) for v, x in values.items()
        }
        self.inputs: Mapping[int, tuple[Any, ...]] = {
            n.index: tuple(
                self._scaled(n.index, i, self._work(evaluate(w.expr))) for i, w in enumerate(n.inputs)
            )
            for n in self.graph.nodes
        }

    def _balance(self) -> None:
        """Choose variables in which the two factors of each contraction have the same typical length."""
        for node in self.graph.nodes:
            if isinstance(node.rule, Contraction):
                norms = [node.rule.reduce(i, jnp.square(x)) for i, x in enumerate(self.inputs[node.index])]
                scale = jnp.sqrt(balance(*norms))
                self._scales[node.index, 0], self._scales[node.index, 1] = scale, 1 / scale

    def _scaled(self, v: int, i: int, x: Any) -> Any:
        """A value of input i as its node has it: in the variables of its metric."""
        scale = self._scales.get((v, i))
        return x if scale is None else x * scale

    def inside(self, state: S) -> tuple["Problem", S]:
        """This problem inside a loop over states: what is cheap to compute is computed anew, not kept.

        Only parameters, the outputs of contractions, and those that are small next to their inputs stay in
        memory from step to step. The barrier ties them to the state, so that a compiler does not move the
        rest out of the loop.
        """

        def keep(node: Node) -> bool:
            if node.is_parameter or isinstance(node.rule, Contraction):
                return True
            read = sum(math.prod(wire.shape) for wire in node.wires)
            return not node.is_target and 8 * math.prod(node.shape) <= read

        kept, order = self._recomputed(keep)
        values, state = jax.lax.optimization_barrier(({v: self._values[v] for v in kept}, state))
        evaluate = Evaluator((), values, known=self._evaluate)
        for v in order:
            node = self.graph.nodes[v]
            assert node.rule is not None
            values[v] = node.rule.forward(*(evaluate(w.expr) for w in node.inputs))
        problem = copy.copy(self)
        problem._place_at(evaluate, values)
        return problem, state

    def narrow(self, x: S) -> S:
        """Arrays as they are kept from step to step."""
        if self._state_dtype == self.dtype:
            return x
        return jax.tree.map(lambda a: a.astype(self._state_dtype), x)

    def widen(self, state: S) -> S:
        """A state to compute with."""

        def one(x: jax.Array) -> jax.Array:
            return x.astype(self.dtype) if x.dtype == self._state_dtype else x

        return state if self._state_dtype == self.dtype else jax.tree.map(one, state)

    def _recomputed(self, keep: Callable[[Node], bool]) -> tuple[list[int], list[int]]:
        """The nodes whose values are kept, and those that follow from them, in an order of evaluation.

        In a stacked graph there may be none: then more are kept.
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

    def _count(self) -> dict[int, int | np.ndarray | jax.Array]:
        """How many edges leave each scalar of each node; an array need not have all axes in full."""
        totals: dict[int, Any] = {n.index: 0 for n in self.graph.nodes if not n.is_target}
        for place, wiring in self.wirings.items():
            counts = wiring.counts(self.edge_counts[place])
            add(totals, zip(wiring.wire.sources, counts, strict=True))
        return {v: condensed(x) if isinstance(x, np.ndarray) else x for v, x in totals.items()}

    def all_from_one(self, v: int, i: int) -> bool:
        """Whether all edges into input i of a node are known to come from one node, none from constants."""
        node, wire = self.graph.nodes[v], self.graph.nodes[v].wires[i]
        if len(wire.sources) != 1:
            return False
        (count,) = self.wirings[v, i].counts(self.edge_counts[v, i])
        if isinstance(count, jax.Array):
            return False
        return fan_out.total(count, self.graph.nodes[wire.sources[0]].shape) == fan_out.entering(node, i)

    def mean(self, v: int, total: jax.Array) -> jax.Array:
        """A sum over the edges that leave a node, as a mean; zero where nobody reads."""
        count = self.counts[v]
        return self.graph.placed(v, total / (count if isinstance(count, int) else jnp.maximum(count, 1)))

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

    def _weigh(self) -> dict[int, np.ndarray | jax.Array]:
        """By which factors the losses of each target enter what the function returns: their mean."""
        size = sum(math.prod(expr.shape) for expr in self.graph.outputs)
        found: dict[int, Any] = {}
        for expr in self.graph.outputs:
            wire = Wire.of(expr)
            if wire.constant or not expr.after:
                continue
            share = np.full(expr.shape, 1 / size, self.dtype)
            if any(e.constant is not None for e in walk(expr)) or any(
                not self.graph.nodes[s].is_target for s in wire.needs
            ):
                parts: Sequence[Any] = self._wiring(wire).pull(jnp.asarray(share))
            else:  # it follows from the program alone
                avals = [jax.ShapeDtypeStruct(self.graph.nodes[s].shape, self.dtype) for s in wire.sources]
                with jax.ensure_compile_time_eval():
                    found_now = Wiring(wire, avals, Evaluator((), {})).pull(jnp.asarray(share))
                    parts = [np.asarray(part) for part in found_now]
            add(found, zip(wire.sources, parts, strict=True))
        return found

    def factor(self, node: Node) -> jax.Array | None:
        """The factors of a target's losses; None where none of them counts."""
        found = self._factors.get(node.index)
        if found is None or (isinstance(found, np.ndarray) and not found.any()):
            return None
        return jnp.asarray(found)

    def _relative(self, node: Node) -> float | jax.Array:
        """The factors of a target's losses, next to the largest of all; one number where all are the same."""
        mine, every = self._factors.get(node.index), list(self._factors.values())
        if mine is None:
            return 0.0
        if all(isinstance(f, np.ndarray) for f in every):
            largest = max(float(np.max(np.abs(f), initial=0)) for f in every)
            share = mine / largest if largest else np.zeros_like(mine)
            rounded = np.where(np.abs(share - 1) < 1e-5, 1, share)
            return float(rounded.flat[0]) if rounded.size and np.ptp(rounded) == 0 else jnp.asarray(rounded)
        most = functools.reduce(jnp.maximum, (jnp.max(jnp.abs(jnp.asarray(f)), initial=0) for f in every))
        return jnp.asarray(mine) / jnp.where(most > 0, most, 1)

    # --- Projections ---

    def push(self, v: int, i: int, value: Mapping[int, jax.Array]) -> jax.Array | None:
        """The displacements that input i of a node sees; None for a constant."""
        wiring = self.wirings.get((v, i))
        if wiring is None:
            return None
        return self._scaled(v, i, wiring.push(*(value[s] for s in wiring.wire.sources)))

    def pull(
        self, v: int, i: int, total: jax.Array | None, power: int = 1
    ) -> Iterator[tuple[int, jax.Array]]:
        """The sources of input i of a node, each with what sums over its slots come to for its scalars.

        Args:
            v: the node.
            i: which of its inputs.
            total: for each slot, a sum over its edges; None for constants.
            power: of the edges that are summed; 2 for squares.
        """
        wiring = self.wirings.get((v, i))
        if wiring is None or total is None:
            return
        if (v, i) in self._scales:
            total = total / self.scale(v, i) ** power
        yield from zip(wiring.wire.sources, wiring.pull(total), strict=True)

    def asked(self, goals: Sequence[jax.Array]) -> dict[int, jax.Array]:
        """What is asked of nodes, given what is asked of the outputs that read them."""
        wanted: dict[int, jax.Array] = {}
        for expr, goal in zip(self.graph.outputs, goals, strict=True):
            wire = Wire.of(expr)
            if not wire.constant:
                add(wanted, zip(wire.sources, self._wiring(wire).pull(goal), strict=True))
        return wanted

    def scale(self, v: int, i: int) -> float | jax.Array:
        """How many times longer input i of a node is in the variables of its metric."""
        return self._scales.get((v, i), 1.0)

    def zeros(self, v: int, i: int) -> jax.Array:
        """No displacement at all, in the shape of an input."""
        return jnp.zeros(self.graph.nodes[v].inputs[i].shape, self.dtype)

    def project(self, v: int, shifts: tuple[jax.Array | None, ...], goal: jax.Array | None) -> Moves:
        """Project a node whose inputs are in consensus: all edges of one scalar carry one value.

        Args:
            v: an operation or a target.
            shifts: the displacements of its inputs; None for constants.
            goal: the mean displacement of the edges that leave it; None for a target.
        """
        node = self.graph.nodes[v]
        if isinstance(node.rule, Contraction):
            assert goal is not None
            return self._contract(node, node.rule, shifts, goal)
        full = tuple(self.zeros(v, i) if s is None else s for i, s in enumerate(shifts))
        moves, move = self.displace(node, full, goal)
        return Moves(moves, move, total_squares(moves), lambda i, whole: _sum_if(whole, moves[i] ** 2))

    def squared(self, v: int, moves: Moves) -> jax.Array:
        """How far a projection moved the edges of a node, in and out, squared."""
        if moves.output is None:
            return moves.squared
        return moves.squared + (moves.output**2 * self.counts[v]).sum()

    def displace(
        self, node: Node, shifts: tuple[jax.Array, ...], goal: jax.Array | None
    ) -> tuple[tuple[jax.Array, ...], jax.Array | None]:
        """Project a node that is not a contraction, slot by slot."""
        v = node.index
        if isinstance(node.rule, Target):
            predictions, *labels = self.inputs[v]
            now, factor = predictions + shifts[0], self._relative(node)
            if isinstance(factor, float) and factor == 1:
                moved = node.rule.displace(now, *labels)
            elif isinstance(factor, float) and factor == 0:
                moved = jnp.zeros_like(now)
            else:
                moved = node.rule.weighted(factor, now, *labels)
            # Written out: it ends with sums, which would be found again wherever it is read.
            return (end_kernel(self._work(moved)),), None
        rule: Any = node.rule
        fixed = self.fixed(node)
        if isinstance(rule, Dot) and fixed is not None:
            rule = Dot(fixed)
        return self.displace_as(rule, node, self.inputs[v], shifts, goal)

    def displace_as(
        self, rule: Primitive, node: Node, inputs: Arrays, shifts: Arrays, goal: jax.Array | None
    ) -> tuple[Arrays, jax.Array]:
        """Project copies of a primitive that share a node's output."""
        assert goal is not None
        v = node.index
        read = self.read(v)
        if read is not None and isinstance(rule, Constrain):
            # A member is one, read or not; what nobody reads of it has no wish but the input's.
            goal, read = jnp.where(read, goal, inputs[0] + shifts[0] - self.points[v]), None
        weight = self.weight(v)
        if read is not None and rule.joint:
            weight, read = jnp.where(read, weight, 0), None
        still = tuple(jnp.zeros(x.shape, self.dtype) for x in inputs[len(shifts) :])
        moves, move = rule.displace(inputs, (*shifts, *still), self.points[v], goal, weight)
        moves = moves[: len(shifts)]
        if read is not None:  # an output that nobody reads constrains nothing
            moves = tuple(
                jnp.where(read.reshape(read.shape + (1,) * (m.ndim - read.ndim)), m, 0) for m in moves
            )
        return moves, move

    def fixed(self, node: Node) -> int | None:
        """Which input of a product keeps its value, where constants are fixed."""
        constant = [i for i, wire in enumerate(node.wires) if wire.constant]
        return constant[0] if self.fixed_constants and constant else None

    def _contract(
        self, node: Node, rule: Contraction, shifts: tuple[jax.Array | None, ...], goal: jax.Array
    ) -> Moves:
        v = node.index
        (x0, y0), (dx, dy) = self.inputs[v], shifts
        x = x0 if dx is None else x0 + dx
        y = y0 if dy is None else y0 + dy
        drift = self.drift(v, dx, dy)
        fixed = self.fixed(node)
        if fixed is not None:
            return self._contract_fixed(node, rule, fixed, goal - drift)
        norms = self.norm(v, 0, dx), self.norm(v, 1, dy)

        def solved() -> tuple[jax.Array, jax.Array, Multiplier]:
            plus, minus = sum_and_difference(norms[0] + norms[1], self.points[v] + drift)
            return plus, minus, self.solve(v, plus, minus, goal - drift)

        plus, minus, m = solved()
        moving = [i for i, shift in enumerate(shifts) if shift is not None]

        def with_spheres(_: jax.Array) -> list[jax.Array]:
            return [m.other, m.lam, *(rule.scatter(i, m.along(i, rule.length)) for i in moving)]

        def looking(own: jax.Array) -> list[jax.Array]:
            """The same; hardly ever is there a sphere, and without one the sums are those of one array."""

            def on_spheres() -> list[jax.Array]:
                m = solved()[2]
                return [rule.scatter(i, m.on_sphere(i, rule.length)) for i in moving]

            nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(on_spheres))
            more = jax.lax.cond(jnp.min(own, initial=0) < 0, on_spheres, lambda: nothing)
            sums = (rule.scatter(i, own) + extra for i, extra in zip(moving, more, strict=True))
            return [m.other, m.lam, *sums]

        solve = rule.solver(self.weight(v), drift, goal, *norms) if self.read(v) is None else None

        def in_one_kernel(_: jax.Array) -> list[jax.Array]:
            assert solve is not None
            found = solve(drift, self.points[v], goal, *norms)
            return [found.other, found.reached, *(found.own[i] for i in moving)]

        # The answer is the multipliers, or from the kernel, where the outputs are: it has what was asked.
        other, answer, *own = on_one_device(
            m.own,
            cpu=looking if rule.windowed else None,  # other devices would have to wait for the answer
            cuda=in_one_kernel if solve else None,
            default=with_spheres,
        )

        def total_move(i: int, this: jax.Array, partner: jax.Array) -> jax.Array:
            return own[moving.index(i)] * visible(this) + rule.pull(i, partner, other)

        inputs = (
            None if dx is None else total_move(0, x, y),
            None if dy is None else total_move(1, y, x),
        )

        def squares(i: int, whole: bool) -> jax.Array:
            # Of own * this + other * partner. Without spheres, which hardly ever are there.
            this, partner = (x, y) if i == 0 else (y, x)
            mine, theirs, both = m.own**2, m.other**2, 2 * m.own * m.other
            if whole:
                return jnp.sum(mine * norms[i] + both * (plus - minus) / 4 + theirs * norms[1 - i])
            crossed = this * rule.pull(i, partner, both) + rule.pull(i, partner**2, theirs)
            return jnp.maximum(rule.scatter(i, mine) * this**2 + crossed, 0)

        def reach(asked: jax.Array) -> jax.Array:
            return on_one_device(
                asked,
                answer,
                cuda=(lambda _, reached: reached) if solve else None,
                default=lambda asked, lam: asked - lam / self.weight(v),
            )

        output = -(m.lam if solve else answer) / self.weight(v)
        return Moves(inputs, output, m.squared(plus, minus).sum(), squares, reach)

    def drift(self, v: int, dx: jax.Array | None, dy: jax.Array | None) -> jax.Array:
        """How much the products of a contraction change with displacements of its inputs."""
        rule, (x0, y0) = self.graph.nodes[v].rule, self.inputs[v]
        assert isinstance(rule, Contraction)
        if dx is None:
            assert dy is not None
            return rule.pair(x0, dy)
        if dy is None:
            return rule.pair(dx, y0)
        return rule.pairs((dx, y0 + dy), (x0, dy))

    def _contract_fixed(self, node: Node, rule: Contraction, fixed: int, residual: jax.Array) -> Moves:
        """With one input fixed the constraint is a hyperplane."""
        v, moving = node.index, 1 - fixed
        lam = self.multiplier_fixed(v, fixed, residual)
        total = rule.pull(moving, self.inputs[v][fixed], lam)
        inputs = (total, None) if moving == 0 else (None, total)
        squared = (lam**2 * self._norms[v, fixed]).sum()

        def squares(i: int, whole: bool) -> jax.Array:
            return squared if whole else rule.pull(i, self.inputs[v][fixed] ** 2, lam**2)

        return Moves(inputs, -lam / self.weight(v), squared, squares)

    def multiplier_fixed(self, v: int, fixed: int, residual: jax.Array) -> jax.Array:
        """The multipliers of a node's dot products with a fixed vector."""
        read = self.read(v)
        residual = residual if read is None else jnp.where(read, residual, 0)
        return residual / (self._norms[v, fixed] + 1 / self.weight(v))

    def norm(self, v: int, i: int, shift: jax.Array | None) -> jax.Array:
        """For each output of a contraction, the squared length of its slots of input i after a shift."""
        rule, at = self.graph.nodes[v].rule, self.inputs[v][i]
        assert isinstance(rule, Contraction)
        if shift is None:
            return self._norms[v, i]
        if (v, i) in self._norms:
            # The sum of the two need not be written out: next to a constant, nothing else asks for it.
            return jnp.maximum(self._norms[v, i] + rule.reduce(i, shift * (2 * at + shift)), 0)
        return rule.reduce(i, jnp.square(at + shift))

    def solve(self, v: int, plus: jax.Array, minus: jax.Array, residual: jax.Array) -> Multiplier:
        """The multipliers of a node's dot products; zero where nobody reads the output."""
        read = self.read(v)
        residual = residual if read is None else jnp.where(read, residual, 0)
        return multiplier(plus, minus, residual, self.weight(v))
